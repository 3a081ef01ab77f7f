"""The parts of a check: `times`, with `gpt2 verify` before it, `tests` and `sanitizers`."""

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import time

from bench.rows import GPT2_SMALL, ROOT

from . import device_tests, sanitizers
from .budget import Budget, BudgetUsedUp, NotRun
from .measure import measure_rows, ours_failed
from .ours import Ours
from .results import Results
from .rows import rows
from .table import markdown
from .timing import METHOD
from .verify import verify
from .worker import Missing, Worker

TINY = ROOT / "tests/data/odd"  # the model of a dry run


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def error(text: str) -> None:
    progress(f"error: {text}")


def describe(args: argparse.Namespace, ours: Ours) -> dict:
    """What is the same for all parts."""
    version = ours.run("--version")
    if version.status != 0:
        raise NotRun(f"`{args.binary} --version` ended with status {version.status}: {version.stderr.strip()}")
    about = {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "machine": f"{platform.platform()}, {os.cpu_count()} CPUs",
        "binary": version.stdout.strip(),
        "binary_sha256": hashlib.sha256(args.binary.read_bytes()).hexdigest(),
    }
    if args.dry_run:
        return about | {"gpu": "no GPU", "driver": None}
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().splitlines()[0]
    name, driver = answer.rsplit(", ", 1)
    return about | {"gpu": name, "driver": driver}


def times(args: argparse.Namespace) -> int:
    config = json.loads((TINY / "config.json").read_text()) if args.dry_run else GPT2_SMALL
    shape, device = {key: config[key] for key in GPT2_SMALL}, "cpu" if args.dry_run else "cuda"
    budget = Budget(args.budget)
    ours = Ours(args.binary, device, args.library_path, TINY if args.dry_run else None, budget)
    worker = Worker(device, shape, budget)
    verified = args.out / "verify.json"
    try:
        about = describe(args, ours)
        try:
            about |= worker.about()
        except Missing as missing:
            verify(ours, verified, progress)  # that much needs no PyTorch
            error(str(missing))
            return 3
        settings = {"rounds": args.rounds, "quick": args.quick, "dry_run": args.dry_run, "method": METHOD}
        results = Results(args.out, about, settings, rows(args.rows, args.dtypes, args.quick, args.dry_run))
        if args.resume:
            progress(results.resume())
        results.write()
        results.verify = results.verify or verify(ours, verified, progress)
        results.write()
        measure_rows(results.wanted, ours, worker, args.rounds, budget, results, progress)
    except BudgetUsedUp as over:
        error(f"{over} before the first row")
        return 1
    finally:
        worker.close()
    results.write()
    print(markdown(results.report()), end="")
    progress(f"wrote {args.out / 'gpu.json'} and {args.out / 'gpu.md'}")
    if not results.verify["passed"]:
        why = results.verify["error"] or "FAILED"
        error(f"gpt2 verify: {why}; the times are of a build that is not known to be right")
    for cell in (failed := ours_failed(results)):
        error(f"{cell}: our kernels did not run")
    if not results.found:
        error(f"no row was measured: {results.stopped}")
    return 0 if results.verify["passed"] and not failed and results.found else 1


def tests(args: argparse.Namespace) -> int:
    programs = args.binary.parent / "tests"
    if not programs.is_dir():
        progress(f"tests: not in {programs}, not run; `scripts/cuda/build.sh --tests` puts them beside target/cuda/gpt2")
        return 3 if args.part == "tests" else 0
    budget = Budget(args.budget)
    device = "cpu" if args.dry_run else "cuda"
    about = describe(args, Ours(args.binary, device, args.library_path, None, budget))
    return device_tests.run_tests(programs, device, args.library_path, args.out, about, budget, progress)


def sanitize(args: argparse.Namespace) -> int:
    if args.sanitizer is None:
        progress("compute-sanitizer: not there, not run; it comes with CUDA's toolkit")
        return 3 if args.part == "sanitizers" else 0
    budget = Budget(args.budget)
    device = "cpu" if args.dry_run else "cuda"
    about = describe(args, Ours(args.binary, device, args.library_path, None, budget))
    return sanitizers.sanitize(
        args.sanitizer, args.binary, device, args.library_path, args.out, about, budget, progress
    )
