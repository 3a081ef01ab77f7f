"""compute-sanitizer on our own kernels: addresses, shared memory's order, initial values, barriers."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from .budget import Budget
from .in_turn import NOT_FINISHED, run_in_turn
from .processes import Done, run

TOOLS = ["memcheck", "racecheck", "initcheck", "synccheck"]
KERNELS = [f"{start}_" for start in (
    "attention", "decode", "merge", "layer_norm", "finish", "embed", "gradient", "delta", "cross_entropy", "sample", "append",
    "product", "candidates",
)]
FOUND = 9  # the status that we ask for if a tool finds something
LIMIT = 10_000  # reports
CLEAN, ERRORS, NO_RESULT = "found nothing", "FOUND ERRORS", "came to no result"
# A line of a report, such as `=========     at attention_bf16_d64_q128+0x1a0 in attention.cu:20`.
OF_OURS = re.compile(rf"^=+.*\b(?:{'|'.join(KERNELS)})", re.MULTILINE)


def filters(option: str) -> list[str]:
    """Checks only kernels with one of these parts in their names; a kernel needs to match one option of several."""
    return [word for kernel in KERNELS for word in (option, f"kns={kernel}")]


def judge(tool: str, done: Done) -> dict:
    """What a tool says of our kernels. Only its own summary, of a run that asked for them, makes a result clean."""
    ours = len(OF_OURS.findall(done.stdout))  # lines
    summaries = [int(n) for n in re.findall(r"^=+ .*SUMMARY: (\d+)", done.stdout, re.MULTILINE)]
    if done.status is None:
        result = ERRORS if ours else NOT_FINISHED
    elif done.status not in (0, FOUND) or not summaries or '"fused"' not in done.stdout:
        result = NO_RESULT
    elif done.status == 0 and not any(summaries):
        result = CLEAN
    elif tool == "initcheck" and not ours and sum(summaries) < LIMIT:
        result = CLEAN  # it watches all kernels: these reports are of Candle's or CUDA's
    else:
        result = ERRORS
    return {"result": result, "status": done.status, "reports": sum(summaries)}


def sanitize(
    sanitizer: Path, binary: Path, device: str, library_path: str, folder: Path, about: dict, budget: Budget,
    progress: Callable[[str], None],
) -> int:
    """Runs each tool, and writes sanitizers.json after each. Returns the exit status."""

    @cache
    def option() -> str:
        # Before version 2023.3 the option had another name; both take the same filters.
        help_text = run([sanitizer, "--help"], budget.remaining(), library_path).stdout
        return "--kernel-name" if "--kernel-name" in help_text else "--kernel-regex"

    def run_one(tool: str, share: float, log: Path) -> dict:
        # Initcheck has to see who writes the memory that our kernels read, so it watches all kernels.
        only = [] if tool == "initcheck" else filters(option())
        command = [sanitizer, "--tool", tool, "--error-exitcode", FOUND, "--print-limit", LIMIT]
        command += ["--show-backtrace", "device", *only]  # the host's functions have names like our kernels
        progress(f"{sanitizer.name} --tool {tool}: at most {share:.0f} s")
        one = judge(tool, run([*command, binary, "verify", "--device", device, "--json"], share, library_path, log))
        progress(f"{tool}: {one['result']}" + ("" if one["result"] == CLEAN else f"; all of it: {log}"))
        return one

    report = {"about": about, "kernels": KERNELS}
    tools = run_in_turn("tool", TOOLS, report, folder / "sanitizers.json", budget, progress, run_one)
    progress("compute-sanitizer: " + ", ".join(f"{one['tool']} {one['result']}" for one in tools))
    return 0 if all(one["result"] == CLEAN for one in tools) else 1
