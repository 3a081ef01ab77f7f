#!/usr/bin/env python3
"""Time the `gpt2` binary and PyTorch alternately on this machine, and print the ratios beside the aims.

    cargo build --release --workspace
    pip install -r scripts/requirements.txt
    python scripts/bench_vs_pytorch.py                              the table: f32, three rounds
    python scripts/bench_vs_pytorch.py --rows core,decode --markdown
    python scripts/bench_vs_pytorch.py --dtype bf16                 f16, bf16: both sides
    python scripts/bench_vs_pytorch.py --rows train --dtype bf16    training, ours with --train-dtype, beside autocast
    python scripts/bench_vs_pytorch.py --isa avx2                   both sides held to AVX2
    python scripts/bench_vs_pytorch.py --sweep --plot core.png      core over T: time and memory
    python scripts/bench_vs_pytorch.py --threads-sweep              1, 2, 4 and 8 threads
    python scripts/bench_vs_pytorch.py --json > bench.json
    python scripts/bench_vs_pytorch.py --quick                      tiny sizes: does it run?

PyTorch runs transformers' GPT-2 with sdpa attention in torch.inference_mode. Each side does one untimed run,
then timed ones; a round's number is their median, and the printed number is the median of the rounds. The
sides take turns at going first. A training step is forward, backward and fused AdamW with dropout 0.1, which
PyTorch's sdpa on the CPU computes in plain operations; fresh processes measure its time and peak memory. The
other whole-model rows run on one checkpoint, GPT-2 small's shape with seeded random weights, and the script
times nothing unless both sides compute the same logits and the same greedy ids from it. Another busy program
distorts both sides, PyTorch's spinning threads most of all (ten times slower, not two): the script marks such
rounds and does not count them. Linux only.
"""

import argparse
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from bench.measure import Bench, TorchWorker, check_agreement, describe_machine, measure_rows, measure_sweep, measure_threads
from bench.processes import Failure, check, hold, status_of, watch
from bench.report import draw, progress, render
from bench.rows import GPT2_SMALL, GROUPS, INSTALL, ISAS, LENGTHS, QUICK, ROOT, ROWS, Row, THREAD_ROWS, TORCH_DTYPES
from bench.side import serve
from bench.torch_side import TorchSide

# This process imports neither torch nor matplotlib while it measures: as Linux counts it, a child's peak memory
# is never less than its parent's memory at the fork.


def parse() -> argparse.Namespace:
    epilog = "With a sweep, the table runs only where --rows asks for it."
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog=epilog)
    add = parser.add_argument
    add("--rows", metavar="A,B", help=f"rows to run: {','.join(GROUPS)} (default: all)")
    add("--sweep", action="store_true", help="core over T: time, and the peak memory of a fresh process for each T")
    add("--plot", type=Path, metavar="FILE", help="with --sweep: write a PNG")
    add("--threads-sweep", action="store_true", help="1, 2, 4 and 8 threads")
    add("--dtype", choices=TORCH_DTYPES, default="f32", help="of both sides (default: f32); training rows in bf16 only where --rows asks for them, and none in f16")
    add("--isa", choices=ISAS, help="hold both sides to this instruction set")
    add("--rounds", type=int, metavar="N", help="default: 3, with --quick 1")
    add("--threads", type=int, metavar="N", default=len(os.sched_getaffinity(0)), help="default: all cores")
    add("--quick", action="store_true", help="tiny sizes: the numbers mean nothing")
    add("--misaligned", action="store_true", help="a checkpoint whose data begins at byte 4n + 3, as in GPT-2's own")
    add("--peak-gflops", type=float, metavar="X", help="multiply-adds (default: as `gpt2 bench machine` measures)")
    add("--read-gb-s", type=float, metavar="X", help="memory bandwidth (default: the same)")
    add("--binary", type=Path, default=ROOT / "target/release/gpt2", metavar="PATH", help="the gpt2 to time")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON document")
    form.add_argument("--markdown", action="store_true", help="print tables for the README")
    args = parser.parse_args()

    rows_given = args.rows is not None
    args.rows = args.rows.split(",") if args.rows else [] if args.sweep or args.threads_sweep else GROUPS
    args.rounds = (1 if args.quick else 3) if args.rounds is None else args.rounds
    args.binary = args.binary.resolve()
    if unknown := [name for name in args.rows if name not in GROUPS]:
        parser.error(f"--rows: no {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    training = [name for name in args.rows if name.startswith("train")]
    if args.dtype != "f32" and training and not (rows_given and args.dtype == "bf16"):
        if rows_given:
            parser.error(f"--dtype {args.dtype}: {', '.join(training)} train in f32 or bf16")
        args.rows = [name for name in args.rows if name not in training]
    if args.rounds < 1 or args.threads < 1:
        parser.error("--rounds and --threads begin at 1")
    if args.sweep and args.dtype != "f32":
        parser.error("--sweep runs in f32")
    if args.plot and not args.sweep:
        parser.error("--plot draws what --sweep measures")
    needed = ["torch", "transformers", "safetensors"] + (["matplotlib"] if args.plot else [])
    check(parser, args, needed, INSTALL)
    return args


def shrink(row: Row) -> Row:
    """The row of --quick."""
    return replace(row, tokens=max(8, row.tokens // 16), runs=min(row.runs, 2), new_tokens=4)


def measure(args: argparse.Namespace, bench: Bench) -> dict:
    """Runs everything that the options ask for; returns the document that --json prints."""
    rows = [row for row in ROWS if row.group in args.rows]
    thread_rows = THREAD_ROWS if args.threads_sweep else []
    if args.quick:
        # A training step always runs the whole model, for any number of tokens.
        rows, thread_rows = [shrink(row) for row in rows if not row.trains], [shrink(row) for row in thread_rows]
    report: dict = {"machine": describe_machine() | bench.pytorch("versions")}
    report |= {name: getattr(args, name) for name in ("threads", "rounds", "quick", "misaligned", "dtype", "isa")}
    if any(row.needs_checkpoint for row in [*rows, *thread_rows]):
        progress("writing a checkpoint")
        options = dict(folder=str(bench.folder), shape=bench.shape, misaligned=args.misaligned)
        report["checkpoint_bytes"] = bench.pytorch("write_checkpoint", **options)
        report["agreement"] = check_agreement(bench, args.threads)

    def peaks() -> dict:
        given = {"fma_gflops": args.peak_gflops, "read_gb_s": args.read_gb_s, "others_cpus": 0.0}
        if None in given.values() and any(row.peak_aim for row in rows):
            try:
                done, others = watch(lambda: bench.gpt2("bench machine --json", args.threads), [bench.pytorch])
                measured = json.loads(done.stdout) | {"others_cpus": others}
                return {key: value or measured[key] for key, value in given.items()}
            except (Failure, KeyError, ValueError) as error:
                progress(f"peaks not measured, give --peak-gflops and --read-gb-s: {error}")
        return given

    if rows:
        report |= measure_rows(bench, rows, args.rounds, args.threads, peaks)
    if args.sweep:
        report["sweep"] = measure_sweep(bench, LENGTHS[:3] if args.quick else LENGTHS, args.rounds, args.threads)
    if args.threads_sweep:
        report["threads_sweep"] = measure_threads(bench, thread_rows, args.rounds)
    return report


def main() -> int:
    args = parse()
    return status_of(lambda: timed(args))


def timed(args: argparse.Namespace) -> int:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench_vs_pytorch-")))
        hold(ISAS, args.isa)
        pytorch = TorchWorker()
        stack.callback(pytorch.close)
        pytorch("use", dtype=TORCH_DTYPES[args.dtype])
        shape = QUICK if args.quick else GPT2_SMALL
        report = measure(args, Bench(args.binary, pytorch, shape, folder, args.dtype))
    print(json.dumps(report, indent=2) if args.json else render(report, args.markdown))
    if args.plot:
        draw(report, args.plot)
        progress(f"wrote {args.plot}")
    return 0


if __name__ == "__main__":
    sys.exit(serve(TorchSide) if sys.argv[1:] == ["--worker"] else main())
