"""Is the build right on this device? Runs `gpt2 verify` and sums its report up."""

import json
from collections.abc import Callable
from pathlib import Path

from bench.report import table

from .budget import BudgetUsedUp, NotRun
from .ours import Ours
from .results import write_whole


def verify(ours: Ours, file: Path, progress: Callable[[str], None]) -> dict:
    """Writes the report to `file`, and returns its summary; `error` says why there is none."""
    progress(f"gpt2 verify --device {ours.device}")
    try:
        done = ours.run("verify", "--device", ours.device, "--json")
        write_whole(file, done.stdout)
        checks = json.loads(done.stdout)["checks"]
        failed = [check for check in checks if not check["passed"]]
        keys = ("what", "case", "impl", "dtype")
        lines = [[*(check[key] for key in keys), *numbers(check)] for check in checks]
    except (BudgetUsedUp, NotRun) as error:
        return no_result(str(error))
    except (ValueError, KeyError, TypeError) as error:
        said = " ".join(done.stderr.split()) or repr(error)
        return no_result(f"no result, status {done.status}, {said}")
    progress(table(False, [*keys, "error", "allowed", ""], lines))
    progress(f"{len(checks) - len(failed)} of {len(checks)} paths within their tolerance")
    passed = done.status == 0 and bool(checks) and not failed
    error = None if passed or failed else f"no path failed, but its status is {done.status}"
    return {"passed": passed, "error": error, "checks": len(checks), "failed": failed}


def no_result(error: str) -> dict:
    return {"passed": False, "error": error, "checks": 0, "failed": []}


def numbers(check: dict) -> list[str]:
    error = "nan" if check["error"] is None else f"{check['error']:.1e}"
    return [error, f"{check['tolerance']:.1e}", "ok" if check["passed"] else "FAILED"]
