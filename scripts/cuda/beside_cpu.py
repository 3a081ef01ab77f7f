#!/usr/bin/env python3
"""Runs every command of `gpt2` that takes a device on `cuda` and on `cpu`, and compares their JSON.

    scripts/cuda/beside_cpu.py [PROGRAM] [--only NAME] [--seed N]

PROGRAM is `gpt2` on the driver that runs on the processor (default: scripts/cuda/on-cpu.sh). Every number must agree within
the tolerance of its dtype, and everything else must be equal, apart from what names the device and the time. It exits with 1
if something differs, and prints a row for each command: how many numbers it compared and the largest difference, relative to
the larger of the two numbers and 1.
"""

import argparse
import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
# Of what is rounded to f32 or a half in each layer of the demo model, and of counters and ranks that follow from it.
TOLERANCE = {"f32": 2e-4, "f16": 2e-2, "bf16": 1.5e-1}
# What depends on the device or on time.
NOT_COMPARED = re.compile(
    r"device|implementation|impl|seconds|_ms$|ms_|per_second|elapsed|version|path|out$|command|threads|features$|compiled|peak|memory|rate|date|time|made"
)
TEXT = "O Romeo, Romeo! wherefore art thou Romeo?"
FIXED = ["--seed", "3"]


def commands(folder):
    """The name of each run, its arguments, and its dtypes."""
    corpus = folder / "corpus.txt"
    corpus.write_text("\n\n".join([TEXT, "My lord, the king is dead.", "Come, come, good wench."] * 40))
    fused = ["--impl", "fused"]
    pair = [" fair king and fair", " fair lord and fair", "--answer", " king", "--against", " lord"]
    both = ["f32", "f16", "bf16"]
    train = ["train", "--text", str(corpus), "--steps", "4", "--batch", "2", "--window", "32", "--out", "OUT"]
    return [
        ("attention", ["attention", TEXT], both),
        ("attention, fused", ["attention", TEXT, *fused], both),
        ("attention, ablated", ["attention", TEXT, "--ablate", "0.3", "--block", "3:1", *fused], ["f32"]),
        ("forward", ["forward", TEXT], both),
        ("forward, fused", ["forward", TEXT, *fused], both),
        ("heads", ["heads", *fused], ["f32"]),
        ("lens", ["lens", "To be, or not to", *fused], ["f32"]),
        ("patch", ["patch", *pair, *fused], ["f32"]),
        ("discover", ["discover", *pair], ["f32"]),
        ("circuits", ["circuits"], ["f32"]),
        ("features", ["features", TEXT, "--dictionary", str(REPOSITORY / "tests/data/features/demo")], ["f32"]),
        ("generate, greedy", ["generate", TEXT, "--greedy", "--max-new-tokens", "12", *fused], ["f32"]),
        ("generate, sampled", ["generate", TEXT, "--max-new-tokens", "12", "--top-k", "20", "--top-p", "0.9"], ["f32"]),
        ("generate, beams", ["generate", TEXT, "--beams", "3", "--max-new-tokens", "8", *fused], ["f32"]),
        ("score", ["score", str(corpus), *fused], both),
        ("record", ["record", str(corpus), "--points", "blocks.2.hook_resid_post", "--out", "OUT"], ["f32"]),
        ("train", [*train, "--model", "demo", *fused], ["f32"]),
        ("train, lora", [*train, "--model", "demo", "--lora", "4", *fused], ["f32"]),
        ("train-features", ["train-features", str(corpus), "--point", "blocks.2.hook_resid_post", "--features", "64", "-k", "4", "--batch", "64", "--out", "OUT"], ["f32"]),
        ("inspect", ["inspect", "demo"], ["f32"]),
    ]


def run(program, arguments, device, dtype, folder):
    """What a command prints, as JSON values, and its seconds."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    words = [str(out) if word == "OUT" else word for word in arguments]
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    words += ["--metrics", str(metrics)] if arguments[0] == "train" else ["--json"]
    words += ["--device", device, "--quiet"]
    if arguments[0] not in ("circuits", "heads", "inspect", "record"):
        words += FIXED
    if dtype != "f32":
        words += ["--dtype", dtype]
    start = time.monotonic()
    done = subprocess.run([*program, *words], capture_output=True, text=True, check=False, cwd=folder)
    took = time.monotonic() - start
    if done.returncode:
        return None, took, (done.stderr.strip().splitlines() or ["no message"])[-4:]
    values = []
    decoder = json.JSONDecoder()
    rest = (metrics.read_text() if arguments[0] == "train" else done.stdout).strip()
    while rest:
        value, end = decoder.raw_decode(rest)
        values.append(value)
        rest = rest[end:].strip()
    return values, took, []


class Comparison:
    """Compares two JSON values, and keeps the largest difference."""

    def __init__(self):
        self.numbers = 0
        self.largest = 0.0
        self.where = ""
        self.unlike = []

    def compare(self, a, b, where=""):
        """Goes through both, at the same place of each."""
        if isinstance(a, dict) and isinstance(b, dict):
            for key in sorted(set(a) | set(b)):
                if NOT_COMPARED.search(key.lower()):
                    continue
                if key not in a or key not in b:
                    self.unlike.append(f"{where}.{key} is only on one side")
                else:
                    self.compare(a[key], b[key], f"{where}.{key}")
        elif isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                self.unlike.append(f"{where}: {len(a)} and {len(b)} elements")
            for i, (x, y) in enumerate(zip(a, b)):
                self.compare(x, y, f"{where}[{i}]")
        elif isinstance(a, (int, float)) and isinstance(b, (int, float)) and not isinstance(a, bool):
            self.numbers += 1
            difference = abs(a - b) / max(1, abs(a), abs(b))
            if math.isnan(difference):
                difference = 0 if a != a and b != b else math.inf
            if difference > self.largest:
                self.largest, self.where = difference, where
        elif a != b:
            self.unlike.append(f"{where}: {str(a)[:60]!r} and {str(b)[:60]!r}")


def main():
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("program", nargs="?", default=str(REPOSITORY / "scripts/cuda/on-cpu.sh"))
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    options.program = str(Path(options.program).resolve())
    failed = 0
    print(f"{'command':<22} {'dtype':<5} {'numbers':>8} {'largest':>9}  {'cpu':>6} {'cuda':>6}")
    with tempfile.TemporaryDirectory() as folder:
        for name, arguments, dtypes in commands(Path(folder)):
            if options.only not in name:
                continue
            for dtype in dtypes:
                row = [f"{name:<22} {dtype:<5}"]
                cpu, cpu_took, cpu_said = run([options.program], arguments, "cpu", dtype, Path(folder))
                cuda, cuda_took, cuda_said = run([options.program], arguments, "cuda", dtype, Path(folder))
                found = Comparison()
                wrong = []
                if cpu is None or cuda is None:
                    wrong = [f"cpu: {line}" for line in cpu_said] + [f"cuda: {line}" for line in cuda_said]
                else:
                    found.compare(cpu, cuda)
                    if dtype == "f32":
                        wrong = found.unlike[:5]
                    if found.largest > TOLERANCE[dtype]:
                        wrong.append(f"{found.where} differs by {found.largest:.1e}")
                row.append(f"{found.numbers:>8} {found.largest:>9.1e}  {cpu_took:>5.1f}s {cuda_took:>5.1f}s")
                print(" ".join(row) + ("  FAILED" if wrong else ""), flush=True)
                for line in wrong:
                    print(f"    {line}")
                failed += bool(wrong)
    print("every command agrees with the CPU" if not failed else f"{failed} runs differ")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
