#!/usr/bin/env python3
"""Check a `gpt2` binary on a GPU and time it beside PyTorch; scripts/check-gpu.sh finds the libraries and calls this.

    scripts/check-gpu.sh                                                    everything
    python scripts/check_gpu.py --binary target/cuda/gpt2 --part times      without looking for libraries
    python scripts/check_gpu.py --binary target/release/gpt2 --dry-run      no GPU: does this script run?
    python scripts/check_gpu.py --self-test                                 its own tests: neither GPU nor PyTorch

The times are of GPT-2 small's shape. Both sides' work runs alternately; the printed number is the median of the rounds,
and the ratio is to the best of PyTorch's columns. What cannot run is "not run", with the reason. Before timing,
PyTorch's attention backends are compared with plain f32, pytorch_gpt2.py's GPT-2 with transformers', and the static
cache with the eager path. gpu/ has the parts.
"""

import argparse
import signal
import subprocess
import sys
from pathlib import Path

from gpu import parts
from gpu.budget import NotRun
from gpu.rows import DTYPES, THEIRS


class Terminated(BaseException):
    """SIGTERM, as an exception: it ends the programs that run, and the files name what was not reached."""


def terminate(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the end has begun; a second signal must not cut it off
    raise Terminated("SIGTERM")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--binary", type=Path, metavar="PATH", help="the gpt2 to check")
    add("--out", type=Path, metavar="DIR", default=Path("target/gpu-check"), help="default: target/gpu-check")
    add("--part", choices=["times", "tests", "sanitizers", "all"], default="all", help="default: all")
    add("--budget", type=float, metavar="SECONDS", default=540, help="for each part; default: 540")
    add("--resume", action="store_true", help="keep the finished rows in DIR/gpu.json if nothing else has changed")
    add("--quick", action="store_true", help="only T 128, and few runs")
    add("--dry-run", action="store_true", help="the CPU and a tiny model instead of the GPU; its times mean nothing")
    add("--rows", nargs="+", choices=THEIRS, default=list(THEIRS), help="default: all")
    add("--dtypes", nargs="+", choices=DTYPES, default=DTYPES, help="default: both")
    add("--rounds", type=int, metavar="N", help="default: 3, with --quick or --dry-run 1")
    add("--sanitizer", type=Path, metavar="PATH", help="compute-sanitizer")
    add("--library-path", metavar="DIRS", default="", help="LD_LIBRARY_PATH for the binary; PyTorch uses its own")
    add("--self-test", action="store_true", help="test this script with a made-up GPU and clock")
    add("--worker", action="store_true", help=argparse.SUPPRESS)  # the process with PyTorch in it
    args = parser.parse_args()
    if not (args.self_test or args.worker):
        if args.binary is None:
            parser.error("--binary is needed, such as --binary target/cuda/gpt2")
        if not args.binary.is_file():
            parser.error(f"--binary: {args.binary} is no file")
        if not args.budget > 0:
            parser.error(f"--budget: {args.budget:g} s is no time")
        if args.rounds is not None and args.rounds < 1:
            parser.error(f"--rounds: {args.rounds} is no number of rounds; give 1 or more")
        args.binary = args.binary.resolve()
        args.rounds = args.rounds or (1 if args.quick or args.dry_run else 3)
        try:
            args.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"--out: {args.out}: {error.strerror}")
        args.out = args.out.resolve()
    return args


def main() -> int:
    args = parse()
    if args.worker:
        from gpu.worker import serve

        serve()
        return 0
    if args.self_test:
        from gpu.selftest import run

        return run()
    signal.signal(signal.SIGTERM, terminate)
    statuses = []
    for part, work in (("times", parts.times), ("tests", parts.tests), ("sanitizers", parts.sanitize)):
        if args.part not in (part, "all"):
            continue
        try:
            statuses.append(work(args))
        except Terminated:
            parts.error("ended by SIGTERM; the files have what was done")
            return 143
        except KeyboardInterrupt:
            return 130
        except (NotRun, OSError, subprocess.SubprocessError) as error:
            parts.error(str(error))
            statuses.append(1)
    return next((status for status in statuses if status), 0)


if __name__ == "__main__":
    sys.exit(main())
