"""The tests of the kernels, the model and training on a GPU: the same programs as on the CPU, with GPT2_TEST_DEVICE=cuda."""

import re
from collections.abc import Callable
from pathlib import Path

from bench.rows import ROOT

from .budget import Budget
from .in_turn import NOT_FINISHED, run_in_turn
from .processes import Done, run

PACKAGES = {"kernels": "candle-fused", "model": "gpt2-model", "train": "gpt2-train"}
# Of each property: the cases are drawn anew in each run, so that those of many runs differ.
QUICK_CASES = 4
NO_RESULT = "came to no result"
COUNTS = re.compile(r"^test result: .*?(\d+) passed; (\d+) failed;", re.MULTILINE)


def cpu_only(text: str) -> dict[str, list[str]]:
    """The tests that are for the CPU alone, as scripts/cuda/cpu_only.txt lists them: by package, their names."""
    names: dict[str, list[str]] = {package: [] for package in PACKAGES}
    package = ""
    for line in text.splitlines():
        line = line.split("#")[0].strip()
        if line.endswith(":"):
            package = line[:-1]
        elif line:
            names[package].append(line.split()[0])
    return names


def judge(done: Done) -> dict:
    """What a program says of its tests."""
    if done.status is None:
        return {"result": NOT_FINISHED}
    passed, failed = map(int, (COUNTS.findall(done.stdout) or [(0, 0)])[-1])
    if not passed or (done.status != 0) != (failed > 0):
        return {"result": NO_RESULT, "status": done.status}
    if not failed:
        return {"result": "passed", "passed": passed, "failed": []}
    names = re.findall(r"^    (\S+)", done.stdout.rpartition("\nfailures:\n")[2], re.MULTILINE)
    return {"result": "failed", "passed": passed, "failed": sorted(names)}


def run_tests(
    programs: Path, device: str, library_path: str, folder: Path, about: dict, budget: Budget, progress: Callable[[str], None]
) -> int:
    """Runs each program, and writes tests.json after each. Returns the exit status."""
    left_out = cpu_only((ROOT / "scripts/cuda/cpu_only.txt").read_text())

    def run_one(package: str, share: float, log: Path) -> dict:
        skip = [word for name in left_out[package] for word in ("--skip", name)]
        # The tests find their data by this variable, which cargo sets.
        variables = {"GPT2_TEST_DEVICE": device, "PROPTEST_CASES": str(QUICK_CASES)}
        variables["CARGO_MANIFEST_DIR"] = str(ROOT / "crates" / package)
        progress(f"tests of {package}: at most {share:.0f} s")
        one = judge(run([programs / package, "--quiet", *skip], share, library_path, log, variables))
        failed = one.get("failed", [])
        progress(f"{package}: {one['result']}, {one.get('passed', 0)} passed, {len(failed)} failed")
        if one["result"] != "passed":
            progress("".join(f"  {name}\n" for name in failed) + f"  all of it: {log}")
        return one | {"for_the_cpu": len(left_out[package])}

    report = {"about": about, "cases": QUICK_CASES}
    packages = run_in_turn("package", list(PACKAGES), report, folder / "tests.json", budget, progress, run_one)
    return 0 if all(one["result"] == "passed" for one in packages) else 1
