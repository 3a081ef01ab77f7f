"""Judges a row, and writes the table."""

from statistics import median

from bench.report import table

from .rows import COLUMNS, FUSED, GRAPHED, THEIRS, Row


def judge(row: Row, aim: float | None, cells: dict[str, dict], complete: bool) -> dict:
    """Our fused kernels, launched one by one or as a graph, against the best that PyTorch can do: of each, the faster column."""
    cells = {column: cell | {"median": value_of(cell)} for column, cell in cells.items()}
    known = {column: cell["median"] for column, cell in cells.items() if cell["median"] is not None}
    best = max if row.new_tokens else min
    ours = best((known[column] for column in (FUSED, GRAPHED) if column in known), default=None)
    against = best((column for column in THEIRS[row.group] if column in known), key=known.get, default=None)
    # While columns are missing, the best one may be among them.
    ratio = ours / known[against] if complete and ours and against else None
    met = None if None in (ratio, aim) else ratio >= aim if row.new_tokens else ratio <= aim
    found = {"cells": cells, "complete": complete, "against": against, "ratio": ratio, "aim": aim, "met": met}
    return {"title": row.title, **row._asdict(), **found}


def value_of(cell: dict) -> float | None:
    return None if "not_run" in cell or not cell["rounds"] else median(cell["rounds"])


def amount(value: float | None) -> str:
    return "not run" if value is None else f"{value:.{0 if value >= 100 else 2 if value >= 1 else 3}f}"


def shown(cell: dict | None) -> str:
    if cell is None:
        return ""
    return amount(cell["median"]) if cell["rounds"] or "not_run" in cell else "not reached"


def line(row: dict, columns: list[str]) -> list[str]:
    cells = [shown(row["cells"].get(column)) for column in columns]
    ratio = f"{amount(row['ratio'])} × {row['against']}" if row["ratio"] else "not run" if row["complete"] else ""
    aim = "" if row["aim"] is None else f"{'>=' if row['new_tokens'] else '<='} {row['aim']}"
    return [row["title"], *cells, ratio, aim, {True: "yes", False: "NO", None: ""}[row["met"]]]


def markdown(report: dict) -> str:
    about, settings, verify, rows = (report[key] for key in ("about", "settings", "verify", "rows"))
    head = f"{about['gpu']}, driver {about['driver']}, torch {about['torch']}, {about['binary']}, {about['date']}"
    if settings["quick"]:
        head += ", QUICK"
    if settings["dry_run"]:
        head = "DRY RUN on the CPU with a tiny model: these are no times of a GPU. " + head
    columns = [column for column in COLUMNS if any(column in row["cells"] for row in rows)]
    lines = [line(row, columns) for row in rows]
    text = [head, table(True, ["", *columns, "ratio", "aim", "met"], lines) if rows else "No row was measured."]
    text.append(f"The ratio is the faster of ours fused and ours graph to the best of PyTorch's columns. Timed with {settings['method']}.")
    if report["not_reached"]:
        named = (one["title"] + (" (in part)" if one["in_part"] else "") for one in report["not_reached"])
        text.append(f"Not reached: {report['not_reached'][0]['why']}.\n" + "".join(f"\n- {name}" for name in named))
    if verify:
        found = f"{verify['checks'] - len(verify['failed'])} of {verify['checks']} paths within their tolerance"
        text.append(f"`gpt2 verify`: {verify['error'] or found}.")
    not_run: dict[str, list[str]] = {}
    for row in rows:
        for column, cell in row["cells"].items():
            if "timer" in cell:
                text.append(f"Our times are from: {cell['timer']}.")
            if "not_run" in cell:
                not_run.setdefault(f"Not run, {column}: {cell['not_run']}", []).append(row["title"])
    text += [why + "\n" + "".join(f"\n- {title}" for title in titles) for why, titles in not_run.items()]
    return "\n\n".join(dict.fromkeys(text)) + "\n"
