"""Runs programs one after another, each for its share of the time that is left."""

import json
from collections.abc import Callable
from pathlib import Path

from .budget import Budget, BudgetUsedUp
from .results import write_whole

NOT_FINISHED, NOT_REACHED = "not finished", "not reached"


def run_in_turn(
    kind: str, names: list[str], report: dict, file: Path, budget: Budget, progress: Callable[[str], None],
    run_one: Callable[[str, float, Path], dict],
) -> list[dict]:
    """Runs `run_one` with each name, its share in seconds and its log, and writes the report after each, with the results as `kind`s.
    Returns the results."""
    found = [{kind: name, "result": NOT_REACHED} for name in names]
    report = report | {"budget_s": budget.seconds, f"{kind}s": found}

    def write() -> None:
        write_whole(file, json.dumps(report, indent=2) + "\n")

    write()
    try:
        for number, one in enumerate(found):
            share, start = budget.remaining() / (len(found) - number), budget.clock()
            one |= {"result": NOT_FINISHED, "limit_s": round(share, 1), "log": f"{one[kind]}.log"}
            write()  # if this is ended from outside, this one is not finished
            one |= run_one(one[kind], share, file.parent / one["log"])
            one["seconds"] = round(budget.clock() - start, 1)
            write()
    except BudgetUsedUp as over:
        progress(f"stopped: {over}")
    return found
