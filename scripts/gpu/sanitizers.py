"""compute-sanitizer on our own kernels: addresses, shared memory's order, initial values, barriers."""

import json
import re
from collections.abc import Callable
from pathlib import Path

from .budget import Budget, BudgetUsedUp
from .processes import Done, run
from .results import write_whole

TOOLS = ["memcheck", "racecheck", "initcheck", "synccheck"]
KERNELS = [f"{start}_" for start in (
    "attention", "decode", "merge", "layer_norm", "finish", "embed", "gradient", "delta", "cross_entropy", "sample", "append",
    "product", "candidates",
)]
FOUND = 9  # the status that we ask for if a tool finds something
LIMIT = 10_000  # reports
CLEAN, ERRORS, NOT_FINISHED = "found nothing", "FOUND ERRORS", "not finished"
NO_RESULT, NOT_REACHED = "came to no result", "not reached"
# A line of a report, such as `=========     at attention_bf16_d64_q128+0x1a0 in attention.cu:20`.
OF_OURS = re.compile(rf"^=+.*\b(?:{'|'.join(KERNELS)})", re.MULTILINE)


def filters(option: str) -> list[str]:
    """Checks only kernels with one of these parts in their names; a kernel needs to match one option of several."""
    return [word for kernel in KERNELS for word in (option, f"kns={kernel}")]


def judge(tool: str, done: Done, took: float) -> dict:
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
    return {"result": result, "status": done.status, "seconds": round(took, 1), "reports": sum(summaries)}


def sanitize(
    sanitizer: Path, binary: Path, device: str, library_path: str, folder: Path, about: dict, budget: Budget,
    progress: Callable[[str], None],
) -> int:
    """Runs each tool for its share of what is left, and writes sanitizers.json after each. Returns the exit status."""
    tools = [{"tool": tool, "result": NOT_REACHED} for tool in TOOLS]
    report = {"about": about, "kernels": KERNELS, "budget_s": budget.seconds, "tools": tools}

    def write() -> None:
        write_whole(folder / "sanitizers.json", json.dumps(report, indent=2) + "\n")

    write()
    try:
        # Before version 2023.3 the option had another name; both take the same filters.
        option = "--kernel-name"
        if option not in run([sanitizer, "--help"], budget.remaining(), library_path).stdout:
            option = "--kernel-regex"
        for number, one in enumerate(tools):
            tool, share = one["tool"], budget.remaining() / (len(tools) - number)
            # Initcheck has to see who writes the memory that our kernels read, so it watches all kernels.
            only = [] if tool == "initcheck" else filters(option)
            command = [sanitizer, "--tool", tool, "--error-exitcode", FOUND, "--print-limit", LIMIT]
            command += ["--show-backtrace", "device", *only]  # the host's functions have names like our kernels
            progress(f"{sanitizer.name} --tool {tool}: at most {share:.0f} s")
            start = budget.clock()
            one |= {"result": NOT_FINISHED, "limit_s": round(share, 1), "log": f"{tool}.log"}
            write()  # if this is ended from outside, this tool is not finished
            log = folder / one["log"]
            done = run([*command, binary, "verify", "--device", device, "--json"], share, library_path, log)
            one |= judge(tool, done, budget.clock() - start)
            write()
            progress(f"{tool}: {one['result']}" + ("" if one["result"] == CLEAN else f"; all of it: {log}"))
    except BudgetUsedUp as over:
        progress(f"stopped: {over}")
    progress("compute-sanitizer: " + ", ".join(f"{one['tool']} {one['result']}" for one in tools))
    return 0 if all(one["result"] == CLEAN for one in tools) else 1
