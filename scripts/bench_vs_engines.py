#!/usr/bin/env python3
"""Time the `gpt2` binary beside ONNX Runtime, OpenVINO, CTranslate2, llama.cpp and PyTorch, in turn, on the same random weights.

    cargo build --release --workspace
    pip install -r scripts/requirements-engines.txt
    python scripts/bench_vs_engines.py                              every engine that is installed, seven rounds
    python scripts/bench_vs_engines.py --engines openvino,llama.cpp --rows token-16,token-900 --markdown
    python scripts/bench_vs_engines.py --ours q8_0,q4_0             only the columns beside these forms of ours
    python scripts/bench_vs_engines.py --isa avx2                   held to AVX2, as far as each engine can be
    python scripts/bench_vs_engines.py --plot ratios.png --json > bench.json
    python scripts/bench_vs_engines.py --quick                      tiny sizes: does it run?
    python scripts/bench_vs_engines.py --plan                       what would run; needs no packages

The weights are random, in GPT-2 small's shape. Nothing is timed before its logits are compared with those of our f32: an engine
that differs by more than a part of the largest logit (f32 1e-3, f16 0.02, bf16 and q8_0 0.1, int8 0.5, q4_0 0.6), or in f32
continues a text with other ids, is left out and named. A round runs all sides of a row one after another, and each round
another side begins. Each engine has a process, which is stopped with SIGSTOP while others run, so that no threads spin beside
those that are timed. Every side does one untimed run, then timed ones. The tables have the fastest run of all rounds, the
median of the rounds' medians, and our fastest divided by theirs. Rounds in which another program was busy do not count unless
all were. The engines stay in memory together: about 10 GB, less with --engines. Linux only.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from bench.measure import describe_machine
from bench.processes import Failure, check, hold, status_of
from bench.report import progress
from bench.rows import GPT2_SMALL, QUICK, ROOT
from engines.measure import measure, write_files
from engines.processes import Binary
from engines.report import draw, plan, render
from engines.rows import COLUMNS, ENGINES, INSTALL, ISAS, NAMES, OURS, ROWS, Column, Row, installed, shrink
from engines.worker import main as work

# This process imports no numpy while it measures: as Linux counts it, a child's peak memory is never less than its parent's
# memory at the fork.


def parse() -> argparse.Namespace:
    def some(known: list[str]):
        def names(text: str) -> list[str]:
            found = text.split(",")
            if unknown := [name for name in found if name not in known]:
                raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; there are {', '.join(known)}")
            return found

        return dict(type=names, default=known, metavar="A,B")

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--engines", **some(ENGINES), help=f"engines to time: {','.join(ENGINES)} (default: those installed)")
    add("--rows", **some(NAMES), help=f"rows to run: {','.join(NAMES)} (default: all)")
    add("--ours", **some(OURS), help=f"only the columns beside these forms of ours: {','.join(OURS)} (default: all)")
    add("--isa", choices=ISAS, help="hold all sides to this instruction set; the tables name those that cannot be held")
    add("--rounds", type=int, metavar="N", help="default: 7, with --quick 1")
    add("--threads", type=int, metavar="N", default=2, help="of each side (default: 2)")
    add("--quick", action="store_true", help="tiny sizes: the numbers mean nothing")
    add("--plan", action="store_true", help="print rows, engines and commands, and run nothing")
    add("--binary", type=Path, default=ROOT / "target/release/gpt2", metavar="PATH", help="the gpt2 to time")
    add("--plot", type=Path, metavar="FILE", help="write the ratios as bars: PNG, SVG or PDF")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON document")
    form.add_argument("--markdown", action="store_true", help="print tables for docs/benchmarks.md")
    args = parser.parse_args()

    args.rounds = (1 if args.quick else 7) if args.rounds is None else args.rounds
    args.binary = args.binary.resolve()
    if args.rounds < 1 or args.threads < 1:
        parser.error("--rounds and --threads begin at 1")
    if args.plan:
        return args
    needed = ["numpy", "safetensors"] + (["matplotlib"] if args.plot else [])
    check(parser, args, needed, INSTALL)
    return args


def chosen(args: argparse.Namespace) -> tuple[list[Column], list[Row]]:
    """The columns whose packages are there, for a plan all of them, and the rows that one of them has."""
    rows = [row for row in ROWS if row.name in args.rows]
    columns = [column for column in COLUMNS if column.engine in args.engines and column.ours.form in args.ours]
    columns = [column for column in columns if any(column.runs(row) for row in rows)]
    if not args.plan:
        for column in columns:
            if lacking := column.missing():
                progress(f"left out: {column.title} needs `pip install {' '.join(lacking)}`")
        columns = [column for column in columns if not column.missing()]
    return columns, [shrink(row) if args.quick else row for row in rows if any(column.runs(row) for column in columns)]


def main() -> int:
    args = parse()
    return status_of(lambda: timed(args, *chosen(args)))


def timed(args: argparse.Namespace, columns: list[Column], rows: list[Row]) -> int:
    shape = QUICK if args.quick else GPT2_SMALL
    if args.plan:
        print(plan(Binary(args.binary, Path("FOLDER"), args.threads, shape["vocab_size"]), columns, rows, args.rounds))
        return 0
    if not columns:
        raise Failure(f"no engine is left to time; `{INSTALL}` installs them")
    hold(ISAS, args.isa)
    versions = {package: installed(package) for column in columns for package in column.packages}
    report: dict = {"machine": describe_machine(), "versions": versions}
    report |= {name: getattr(args, name) for name in ("threads", "rounds", "quick", "isa")}
    with tempfile.TemporaryDirectory(prefix="bench_vs_engines-") as folder:
        binary = Binary(args.binary, Path(folder), args.threads, shape["vocab_size"])
        write_files(binary, columns, shape)
        report |= measure(binary, columns, rows, args.rounds, args.isa)
    print(json.dumps(report, indent=2) if args.json else render(report, args.markdown))
    if args.plot and report["cells"]:
        draw(report, args.plot)
        progress(f"wrote {args.plot}")
    return 0 if report["cells"] else 1


if __name__ == "__main__":
    sys.exit(work(*sys.argv[1:]) if sys.argv[1:2] and sys.argv[1] in ("--serve", "--fresh", "--write") else main())
