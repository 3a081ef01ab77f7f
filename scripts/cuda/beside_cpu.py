#!/usr/bin/env python3
"""Runs every command of `gpt2` that takes a device on `cuda` and on `cpu`, and compares their JSON.

    scripts/cuda/beside_cpu.py [PROGRAM] [--only NAME]      all commands, or those whose names contain NAME
    scripts/cuda/beside_cpu.py --self-test                  does the comparison notice what differs? runs no command

PROGRAM is `gpt2` on the driver that runs on the processor (default: scripts/cuda/on-cpu.sh). Every number must agree within
the tolerance of its command and dtype, and everything else must be equal, apart from what names the device and the time; in
f16 and bf16 also apart from texts that follow from the order of numbers. What a run on `cuda` writes must say that `cuda` ran,
and `fused` where that is asked for. It exits with 1 if something differs, and prints a row for each command: how many numbers
it compared and the largest difference, relative to the larger of the two numbers and 1.
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
# By command, in f32, f16 and bf16: three times the largest difference that docs/gpu.md has, in f32 at least 1e-6, since sums in
# another order differ by as much. The texts that `generate` and `train-features` compute go through the same layers as `forward`,
# and steps of Adam divide by square roots of small numbers. `inspect` computes nothing: it counts.
TOLERANCE = {
    "attention": (1e-6, 1.5e-3, 9e-3),
    "forward": (4e-6, 7e-3, 4.5e-2),
    "heads": (1.5e-6,),
    "lens": (1.5e-6,),
    "patch": (1.5e-6,),
    "discover": (1.5e-6,),
    "circuits": (1.5e-6,),
    "features": (1.5e-6,),
    "generate": (4e-6,),
    "score": (1e-6, 6e-5, 1e-3),
    "record": (1e-6,),
    "train": (1.2e-6,),
    "train-features": (2e-4,),
    "inspect": (0,),
}
DTYPES = ["f32", "f16", "bf16"]
# What depends on the device or on time, by its whole name.
NOT_COMPARED = {"device", "implementation", "seconds", "tokens_per_second"}
# Texts that follow from which of two numbers is larger, and may differ where halves are rounded. The ids beside them are numbers.
OF_ORDER = {"token", "kind"}
# They load weights onto the device and run nothing there: `inspect` names no device, `circuits` the CPU, where it multiplies them.
OF_WEIGHTS = {"inspect", "circuits"}
TEXT = "O Romeo, Romeo! wherefore art thou Romeo?"
FIXED = ["--seed", "3"]


def commands(folder):
    """The name of each run, its arguments, and its dtypes."""
    corpus = folder / "corpus.txt"
    corpus.write_text("\n\n".join([TEXT, "My lord, the king is dead.", "Come, come, good wench."] * 40))
    fused = ["--impl", "fused"]
    pair = [" fair king and fair", " fair lord and fair", "--answer", " king", "--against", " lord"]
    train = ["train", "--text", str(corpus), "--steps", "4", "--batch", "2", "--window", "32", "--out", "OUT"]
    return [
        ("attention, eager", ["attention", TEXT, "--impl", "eager"], DTYPES),
        ("attention, fused", ["attention", TEXT, *fused], DTYPES),
        ("attention, ablated", ["attention", TEXT, "--ablate", "0.3", "--block", "3:1", *fused], ["f32"]),
        ("forward, eager", ["forward", TEXT, "--impl", "eager"], DTYPES),
        ("forward, fused", ["forward", TEXT, *fused], DTYPES),
        ("heads", ["heads", *fused], ["f32"]),
        ("lens", ["lens", "To be, or not to", *fused], ["f32"]),
        ("patch", ["patch", *pair, *fused], ["f32"]),
        ("discover", ["discover", *pair], ["f32"]),
        ("circuits", ["circuits"], ["f32"]),
        ("features", ["features", TEXT, "--dictionary", str(REPOSITORY / "tests/data/features/demo")], ["f32"]),
        ("generate, greedy", ["generate", TEXT, "--greedy", "--max-new-tokens", "12", *fused], ["f32"]),
        ("generate, sampled", ["generate", TEXT, "--max-new-tokens", "12", "--top-k", "20", "--top-p", "0.9"], ["f32"]),
        ("generate, drawn", ["generate", TEXT, "--max-new-tokens", "12", "--top-k", "0", "--temperature", "0.8", "--repetition-penalty", "1.2", *fused], ["f32"]),
        ("generate, nucleus", ["generate", TEXT, "--max-new-tokens", "12", "--top-k", "0", "--top-p", "0.8", *fused], ["f32"]),
        ("generate, beams", ["generate", TEXT, "--beams", "3", "--max-new-tokens", "8", *fused], ["f32"]),
        ("score", ["score", str(corpus), *fused], DTYPES),
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


def named(values):
    """The devices and implementations that a run names in its JSON."""
    found = {"device": set(), "implementation": set()}

    def collect(value):
        if isinstance(value, dict):
            for name in found:
                if isinstance(value.get(name), str):
                    found[name].add(value[name])
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
            collect(inner)

    collect(values)
    return found["device"], found["implementation"]


def named_in_files(folder):
    """The devices that the files of a run name: what made a file, or the device that a loader of it is to use."""
    files = [path for path in (folder / "out").rglob("*") if path.is_file()]
    return {name.decode() for path in files for name in re.findall(rb'"device": ?"([^"]*)"', path.read_bytes())}


def not_on_cuda(arguments, values, folder):
    """What is wrong with the names of what ran, of a run on `cuda`."""
    if arguments[0] in OF_WEIGHTS:
        return
    devices, implementations = named(values)
    if not devices and not any(name.startswith("cuda") for name in named_in_files(folder)):
        yield "nothing that it wrote says that it ran on cuda"
    yield from (f"it ran on {device}, not on cuda" for device in sorted(devices) if not device.startswith("cuda"))
    for asked in {"fused", "eager"} & set(arguments):
        yield from (f"it took {name}, not {asked}" for name in sorted(implementations - {asked}))


def is_number(value):
    """Whether it is a number of JSON."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class Comparison:
    """Compares two JSON values, and keeps the largest difference."""

    def __init__(self, dtype):
        self.excused = set() if dtype == "f32" else OF_ORDER
        self.numbers = 0
        self.largest = 0.0
        self.where = ""
        self.unlike = []
        self.left_out = set()

    def compare(self, a, b, where=""):
        """Goes through both, at the same place of each."""
        if isinstance(a, dict) and isinstance(b, dict):
            for key in sorted(set(a) | set(b)):
                if key in NOT_COMPARED:
                    self.left_out.add(key)
                elif key not in a or key not in b:
                    self.unlike.append(f"{where}.{key} is only on one side")
                elif not (key in self.excused and isinstance(a[key], str) and isinstance(b[key], str)):
                    self.compare(a[key], b[key], f"{where}.{key}")
        elif isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                self.unlike.append(f"{where}: {len(a)} and {len(b)} elements")
            for i, (x, y) in enumerate(zip(a, b)):
                self.compare(x, y, f"{where}[{i}]")
        elif is_number(a) and is_number(b):
            self.numbers += 1
            difference = abs(a - b) / max(1, abs(a), abs(b))
            if math.isnan(difference):
                difference = 0 if a != a and b != b else math.inf
            if difference > self.largest:
                self.largest, self.where = difference, where
        elif type(a) is not type(b) or a != b:
            self.unlike.append(f"{where}: {str(a)[:60]!r} and {str(b)[:60]!r}")

    def problems(self, tolerance):
        """What differs by more than may be, as lines."""
        wrong = self.unlike[:5]
        if self.largest > tolerance:
            wrong.append(f"{self.where} differs by {self.largest:.1e}, more than {tolerance:.1e}")
        if self.numbers == 0:
            wrong.append("there is no number to compare")
        return wrong


def self_test():
    """Each kind of difference is noticed, and nothing else is."""
    sound = {"device": "cpu", "loss": 2.5, "ids": [1, 2], "token": "a", "val_loss": None, "rate": 3}
    cases = [  # the change, the dtype, and whether it may be
        ({"device": "cuda"}, "f32", True),
        ({"loss": 2.5001}, "f32", False),
        ({"loss": math.nan}, "bf16", False),
        ({"rate": 4}, "f32", False),
        ({"ids": [1]}, "bf16", False),
        ({"val_loss": 1}, "f16", False),
        ({"val_loss": False}, "f16", False),
        ({"more": 1}, "bf16", False),
        ({"token": "b"}, "bf16", True),
        ({"token": "b"}, "f32", False),
        ({"token": None}, "bf16", False),
    ]
    for change, dtype, is_fine in cases:
        found = Comparison(dtype)
        found.compare([sound], [sound | change])
        assert bool(found.problems(1e-6)) != is_fine, (change, dtype, found.problems(1e-6))
    empty = Comparison("f32")
    empty.compare([], [])
    assert empty.problems(1e-6) == ["there is no number to compare"]
    with tempfile.TemporaryDirectory() as folder:
        asked = ["forward", "--impl", "fused"]
        assert not list(not_on_cuda(asked, [{"device": "cuda", "implementation": "fused"}], Path(folder)))
        assert len(list(not_on_cuda(asked, [{"device": "cpu", "implementation": "eager"}], Path(folder)))) == 2
        assert len(list(not_on_cuda(["train"], [{"loss": 1}], Path(folder)))) == 1
        (Path(folder) / "out").mkdir()
        (Path(folder) / "out/cfg.json").write_text('{"device": "cpu", "made_by": {"device": "cuda:0"}}')
        assert not list(not_on_cuda(["train"], [{"loss": 1}], Path(folder)))
        for _, arguments, dtypes in commands(Path(folder)):
            assert len(TOLERANCE[arguments[0]]) >= len(dtypes), arguments
    print("the comparison notices what differs")


def beside(program, arguments, dtype, folder):
    """Runs a command on both devices. The comparison, what is wrong, and the seconds on each."""
    found = Comparison(dtype)
    cpu, cpu_took, cpu_said = run([program], arguments, "cpu", dtype, folder)
    cuda, cuda_took, cuda_said = run([program], arguments, "cuda", dtype, folder)
    if cpu is None or cuda is None:
        wrong = [f"cpu: {line}" for line in cpu_said] + [f"cuda: {line}" for line in cuda_said]
    else:
        found.compare(cpu, cuda)
        wrong = found.problems(TOLERANCE[arguments[0]][DTYPES.index(dtype)])
        wrong += not_on_cuda(arguments, cuda, folder)
    return found, wrong, (cpu_took, cuda_took)


def main():
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("program", nargs="?", default=str(REPOSITORY / "scripts/cuda/on-cpu.sh"), help="default: %(default)s")
    parser.add_argument("--only", default="", metavar="NAME", help="the commands whose names contain this")
    parser.add_argument("--self-test", action="store_true", help="does the comparison notice what differs? runs no command")
    options = parser.parse_args()
    if options.self_test:
        return self_test()
    program = str(Path(options.program).resolve())
    runs = 0
    failed = 0
    left_out = set()
    with tempfile.TemporaryDirectory() as folder:
        chosen = [row for row in commands(Path(folder)) if options.only in row[0]]
        if not chosen:
            parser.error(f"--only: no command's name contains {options.only!r}; expected one such as forward")
        print(f"{'command':<22} {'dtype':<5} {'numbers':>8} {'largest':>9}  {'cpu':>6} {'cuda':>6}")
        for name, arguments, dtypes in chosen:
            for dtype in dtypes:
                found, wrong, took = beside(program, arguments, dtype, Path(folder))
                row = f"{name:<22} {dtype:<5} {found.numbers:>8} {found.largest:>9.1e}  {took[0]:>5.1f}s {took[1]:>5.1f}s"
                print(row + ("  FAILED" if wrong else ""), flush=True)
                for line in wrong:
                    print(f"    {line}")
                runs += 1
                failed += bool(wrong)
                left_out |= found.left_out
    if not options.only and (unused := NOT_COMPARED - left_out):
        sys.exit(f"error: no command has {', '.join(sorted(unused))}; take it out of NOT_COMPARED")
    print(f"{runs} runs agree with the CPU" if not failed else f"{failed} of {runs} runs differ")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
