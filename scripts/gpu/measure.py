"""Measures the rows one after another until they are done or the time is over."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from .budget import Budget, BudgetUsedUp, NotRun
from .rows import FUSED, GRAPHED, PLAIN, THEIRS, Row, ours_of
from .results import Results
from .worker import first_line


class Side(Protocol):
    def measure(self, row: Row, column: str): ...


def cells_of(row: Row, ours: Side, theirs: Side) -> dict[str, Callable[[], dict]]:
    """What to call for each column; the result has the `value`, in ms or tokens a second."""

    def pytorch(column: str) -> dict:
        ms = theirs.measure(row, column)
        return {"value": 1e3 * row.batch * row.new_tokens / ms if row.new_tokens else ms}

    work = {column: partial(ours.measure, row, implementation) for column, implementation in ours_of(row.group).items()}
    return work | {column: partial(pytorch, column) for column in THEIRS[row.group]}


def measure_row(row: Row, work: dict[str, Callable[[], dict]], rounds: int, budget: Budget, cells: dict) -> None:
    """Fills `cells`: every column in turn in each round, but the plain operations, up to 200 times slower, once. Does not try a failed
    cell again."""
    cells |= {column: {"rounds": []} for column in work}
    for column in list(work) * rounds:
        budget.remaining()
        if "not_run" in cells[column] or (column == PLAIN and cells[column]["rounds"]):
            continue
        try:
            one = work[column]()
            cells[column]["rounds"].append(one.pop("value"))
            cells[column] |= one
        except BudgetUsedUp:
            raise
        except Exception as error:  # our binary, or PyTorch's process: continue with other cells
            kind = "" if isinstance(error, NotRun) else f"{type(error).__name__}: "
            cells[column]["not_run"] = kind + first_line(error)


def measure_rows(
    wanted: Iterable[Row], ours: Side, theirs: Side, rounds: int, budget: Budget, results: Results,
    progress: Callable[[str], None],
) -> None:
    """Writes the files after each row. Ends quietly when the budget does; every other end passes through."""
    try:
        for row in wanted:
            if results.has(row):
                progress(f"{row.title}: kept from before")
                continue
            budget.remaining()
            cells: dict = {}
            try:
                measure_row(row, cells_of(row, ours, theirs), rounds, budget, cells)
            except BaseException:
                results.add(row, cells, complete=False)
                raise
            results.add(row, cells, complete=True)
            results.write()
            progress(results.line(row))
    except BudgetUsedUp as over:
        results.stop(str(over))
        progress(f"stopped: {over}")
    except BaseException as error:
        results.stop(f"ended by {first_line(error)}")
        raise


def ours_failed(results: Results) -> list[str]:
    """The cells, of the rows reached, in which our kernels gave no time, alone or as a graph. A dry run has no model to train, and no
    graph."""

    def expected(row: dict) -> list[str]:
        columns = [column for column in (FUSED, GRAPHED) if column in row["cells"]]
        if not results.settings["dry_run"]:
            return columns
        return [column for column in columns if column == FUSED and row["group"] != "train"]

    return [
        f"{row['title']}, {column}" for row in results.rows() if row["complete"]
        for column in expected(row) if "not_run" in row["cells"][column]
    ]  # fmt: skip
