"""What is known so far, in gpu.json and gpu.md: both are whole at any moment, whenever the run ends."""

import json
from pathlib import Path

from .rows import COLUMNS, Row
from .table import judge, line, markdown

NOT_REACHED = "the run ended before it"  # what a file says whose run was killed
SAME = ("binary_sha256", "torch", "transformers", "gpu", "driver")  # of what two runs must share to share rows


def write_whole(file: Path, text: str) -> None:
    """Writes the whole file or nothing."""
    scratch = file.with_name(f"{file.name}.part")
    scratch.write_text(text)
    scratch.replace(file)


class Results:
    """The rows of one run, in the order of `wanted`, with what is common to them."""

    def __init__(self, folder: Path, about: dict, settings: dict, wanted: list[Row]) -> None:
        self.folder, self.about, self.settings, self.wanted = folder, about, settings, wanted
        self.verify: dict | None = None
        self.found: dict[Row, dict] = {}
        self.stopped: str | None = None

    def resume(self) -> str:
        """Takes the finished rows of an earlier run of the same thing; returns what it did."""
        file = self.folder / "gpu.json"
        try:
            before = json.loads(file.read_text())
            different = [key for key in SAME if before["about"].get(key) != self.about.get(key)]
            different += [key for key in self.settings if before["settings"].get(key) != self.settings[key]]
            earlier = {Row(*(row[key] for key in Row._fields)): row for row in before["rows"] if row["complete"]}
        except FileNotFoundError:
            return "nothing to resume: all rows are measured"
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return f"{file} is no file of this script ({error!r}): all rows are measured"
        if different:
            return f"{file} has another {', '.join(different)}: all rows are measured again"
        self.found = {row: {"cells": earlier[row]["cells"], "complete": True} for row in self.wanted if row in earlier}
        if before["verify"] and before["verify"]["error"] is None:
            self.verify = before["verify"]
        return f"{len(self.found)} of {len(self.wanted)} rows are kept from {file}"

    def has(self, row: Row) -> bool:
        return row in self.found

    def add(self, row: Row, cells: dict, complete: bool) -> None:
        self.found[row] = {"cells": cells, "complete": complete}

    def stop(self, why: str) -> None:
        self.stopped = why
        self.write()

    def judged(self, row: Row) -> dict:
        return judge(row, None if self.settings["dry_run"] else row.aim, **self.found[row])

    def rows(self) -> list[dict]:
        return [self.judged(row) for row in self.wanted if row in self.found]

    def line(self, row: Row) -> str:
        return "  ".join(cell or "-" for cell in line(self.judged(row), COLUMNS))

    def report(self) -> dict:
        why = self.stopped or NOT_REACHED
        missing = [row for row in self.wanted if not (row in self.found and self.found[row]["complete"])]
        return {
            "about": self.about,
            "settings": self.settings,
            "verify": self.verify,
            "stopped": self.stopped,
            "rows": self.rows(),
            "not_reached": [{"title": row.title, "in_part": row in self.found, "why": why} for row in missing],
        }

    def write(self) -> None:
        report = self.report()
        write_whole(self.folder / "gpu.json", json.dumps(report, indent=2) + "\n")
        write_whole(self.folder / "gpu.md", markdown(report))
