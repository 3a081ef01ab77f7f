"""Rows, budgets, and the files that are left."""

import json
import signal
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from gpu import results as files
from gpu.budget import NotRun
from gpu.measure import measure_rows, ours_failed
from gpu.results import NOT_REACHED, Results
from gpu.rows import COLUMNS, COMPILE, DTYPES, EAGER, GRAPH, THEIRS, TRANSFORMERS, Row, ours_of, rows
from gpu.table import judge

from .made_up import MadeUpSide, budget

ABOUT = {
    "date": "today", "binary": "gpt2 1", "binary_sha256": "a", "torch": "2", "transformers": "5", "gpu": "made up",
    "driver": "1",
}
SETTINGS = {"rounds": 2, "quick": False, "dry_run": False, "method": "made up"}
ROWS = [
    Row("block", "bf16", 8, 1024, 20, 0),
    Row("decode", "bf16", 1, 128, 10, 64),
    Row("core", "bf16", 8, 1024, 20, 0),
]
VALUES = {column: 10.0 for column in COLUMNS}
IMPLS = {name: {"value": 9.0, "timer": "events"} for name in ours_of("generate").values()}


class Case(unittest.TestCase):
    def setUp(self) -> None:
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.folder = Path(held.name)

    def measure(self, seconds: float, results: Results | None = None, ours: dict = {}, theirs: dict = {}) -> Results:
        """Each measurement takes a second; a block takes 7, decode 11, and core 9."""
        time, clock = budget(seconds)
        self.ours = MadeUpSide(clock, 1, IMPLS | ours)
        self.theirs = MadeUpSide(clock, 1, VALUES | theirs)
        results = results or self.results()
        measure_rows(results.wanted, self.ours, self.theirs, SETTINGS["rounds"], time, results, lambda _: None)
        results.write()
        return results

    def results(self, **about: str) -> Results:
        return Results(self.folder, ABOUT | about, SETTINGS, ROWS)

    def read(self) -> tuple[dict, str]:
        return json.loads((self.folder / "gpu.json").read_text()), (self.folder / "gpu.md").read_text()

    def titles(self, key: str) -> list[str]:
        return [one["title"] for one in self.read()[0][key]]


class BudgetTest(Case):
    def test_all_rows_fit(self) -> None:
        results = self.measure(100)
        self.assertEqual(self.titles("rows"), [row.title for row in ROWS])
        self.assertEqual(self.read()[0]["not_reached"], [])
        self.assertIsNone(results.stopped)
        self.assertNotIn("Not reached", self.read()[1])

    def test_used_up_within_a_row(self) -> None:
        self.measure(10)
        report, table = self.read()
        self.assertEqual([row["complete"] for row in report["rows"]], [True, False])
        self.assertEqual(report["rows"][0]["ratio"], 0.9)
        self.assertIsNone(report["rows"][1]["ratio"], "the best column may be one that was not reached")
        self.assertEqual(self.titles("not_reached"), [row.title for row in ROWS[1:]])
        self.assertEqual([one["in_part"] for one in report["not_reached"]], [True, False])
        shown = ["9.00", "9.00", "6400", "not reached", "not reached", "not reached"]  # 3 s are left for it
        self.assertIn(f"| {ROWS[1].title} | {' | '.join(shown)} |  | >= 1.5 |  |", table)
        why = "the budget of 10 s was used up"
        self.assertEqual({one["why"] for one in report["not_reached"]}, {why})
        for words in (f"Not reached: {why}", f"- {ROWS[1].title} (in part)\n", f"- {ROWS[2].title}\n"):
            self.assertIn(words, table)

    def test_no_cell_starts_without_time(self) -> None:
        self.measure(7)
        self.assertEqual(len(self.ours.asked) + len(self.theirs.asked), 7)
        self.assertEqual(self.titles("rows"), [ROWS[0].title])

    def test_a_killed_run_names_the_rest(self) -> None:
        """Looks at the files as they are while the second row runs, which is when a kill would leave them."""
        seen, plain = [], MadeUpSide.measure

        def look(side: MadeUpSide, row: Row, column: str):
            if row == ROWS[1]:
                seen.append(self.read())
            return plain(side, row, column)

        with mock.patch.object(MadeUpSide, "measure", look):
            self.measure(100)
        report, table = seen[-1]
        self.assertEqual([row["title"] for row in report["rows"]], [ROWS[0].title])
        self.assertEqual([one["title"] for one in report["not_reached"]], [row.title for row in ROWS[1:]])
        self.assertIn(f"Not reached: {NOT_REACHED}", table)

    def test_an_interrupt_leaves_the_files(self) -> None:
        class Stop(BaseException):
            pass

        with self.assertRaises(Stop):
            self.measure(100, theirs={GRAPH: Stop(signal.SIGTERM.name)})
        self.assertEqual(self.titles("not_reached"), [row.title for row in ROWS[1:]])
        self.assertIn("ended by SIGTERM", self.read()[1])

    def test_a_file_is_whole_or_as_before(self) -> None:
        self.measure(100)
        before = self.read()

        def cut_off(file: Path, text: str) -> None:
            with file.open("w") as half:
                half.write(text[: len(text) // 2])
            raise SystemExit

        with mock.patch.object(Path, "write_text", cut_off), self.assertRaises(SystemExit):
            files.write_whole(self.folder / "gpu.json", "something else")
        self.assertEqual(self.read(), before)


class Cells(Case):
    def test_a_failing_cell_says_why_and_the_others_go_on(self) -> None:
        broken = {EAGER: NotRun("no memory"), TRANSFORMERS: ValueError("odd\nmore")}
        results = self.measure(100, ours={"eager": NotRun("no eager")}, theirs=broken)
        block, decode, core = self.read()[0]["rows"]
        self.assertEqual(block["cells"][EAGER]["not_run"], "no memory")
        self.assertEqual(decode["cells"][TRANSFORMERS]["not_run"], "ValueError: odd")
        self.assertEqual(block["cells"]["ours eager"]["not_run"], "no eager")
        self.assertEqual((block["against"], block["cells"][COMPILE]["median"]), (COMPILE, 10.0))
        self.assertEqual(len([one for one in self.theirs.asked if one == (ROWS[0], EAGER)]), 1, "not tried again")
        self.assertTrue(all(row["complete"] for row in (block, decode, core)))
        self.assertIn(f"Not run, {EAGER}: no memory\n\n- {ROWS[0].title}\n- {ROWS[1].title}", self.read()[1])
        self.assertEqual(ours_failed(results), [])

    def test_our_failure_is_an_error(self) -> None:
        results = self.measure(100, ours={"fused": NotRun("no kernel")})
        self.assertEqual(ours_failed(results), [f"{row.title}, ours fused" for row in ROWS])
        self.assertIsNone(self.read()[0]["rows"][0]["ratio"])

    def test_a_graph_that_fails_is_an_error(self) -> None:
        generate = Row("generate", "bf16", 1, 128, 10, 64)
        for dry_run, failed in ((False, [f"{generate.title}, ours graph"]), (True, [])):
            with mock.patch.dict(SETTINGS, dry_run=dry_run):
                results = Results(self.folder, ABOUT, SETTINGS, [generate])
                self.measure(100, results, ours={"graph": NotRun("no graph")})
                self.assertEqual(ours_failed(results), failed)


class Ratio(unittest.TestCase):
    def judged(self, row: Row, fused: float, **others: float) -> dict:
        values = dict.fromkeys(THEIRS[row.group], 50.0) | others | {"ours fused": fused}
        return judge(row, row.aim, {column: {"rounds": [value]} for column, value in values.items()}, complete=True)

    def test_against_the_best_column_whichever_it_is(self) -> None:
        for row in ROWS:
            for column in THEIRS[row.group]:
                best = 100.0 if row.new_tokens else 20.0
                found = self.judged(row, 30.0, **{column: best})
                self.assertEqual((found["against"], found["ratio"]), (column, 30.0 / best))

    def test_the_faster_of_ours_counts(self) -> None:
        generate = Row("generate", "bf16", 1, 128, 10, 64)
        self.assertEqual(self.judged(generate, 900.0, **{"ours graph": 2000.0, "PyTorch graph": 1000.0})["ratio"], 2)
        self.assertEqual(self.judged(generate, 900.0, **{"ours graph": 500.0, "PyTorch graph": 1000.0})["ratio"], 0.9)
        self.assertEqual(self.judged(ROWS[0], 3.0, **{"ours eager": 1.0, "PyTorch eager": 10.0})["ratio"], 0.3)

    def test_aims(self) -> None:
        block, decode, core = ROWS
        for row, met, missed in ((block, 45.0, 45.1), (decode, 75.0, 74.9), (core, 60.0, 60.1)):
            self.assertIs(self.judged(row, met)["met"], True)
            self.assertIs(self.judged(row, missed)["met"], False)
        self.assertIsNone(self.judged(core._replace(batch=1), 1.0)["met"])

    def test_the_most_important_rows_are_first(self) -> None:
        found = rows(list(THEIRS), DTYPES, quick=False, dry_run=False)
        first = [(row.group, row.dtype) for row in found[:6]]
        self.assertEqual(first, [(g, "bf16") for g in ("core", "decode", "generate", "block", "forward", "train")])
        self.assertEqual((found[0].batch, found[0].tokens), (8, 1024))
        self.assertEqual(len(found), len(set(found)))


class Resume(Case):
    def again(self, **about: str) -> tuple[Results, str]:
        results = self.results(**about)
        return results, results.resume()

    def test_keeps_the_finished_rows_only(self) -> None:
        self.measure(11)
        results, said = self.again()
        self.assertIn("1 of 3 rows are kept", said)
        self.measure(100, results)
        self.assertNotIn(ROWS[0], [row for row, _ in self.theirs.asked])
        self.assertEqual(self.titles("rows"), [row.title for row in ROWS])
        self.assertEqual(self.titles("not_reached"), [])

    def test_refuses_rows_of_anything_else(self) -> None:
        self.measure(100)
        for key in ("binary_sha256", "torch", "gpu"):
            results, said = self.again(**{key: "another"})
            self.assertEqual((results.found, key in said), ({}, True), said)
        with mock.patch.dict(SETTINGS, rounds=5):
            results, said = self.again()
            self.assertEqual((results.found, "rounds" in said), ({}, True), said)

    def test_no_file_or_another_file(self) -> None:
        self.assertIn("nothing to resume", self.again()[1])
        for text in ("{", "[]", '{"about": {}}', '{"about": null, "settings": {}, "rows": [], "verify": null}'):
            (self.folder / "gpu.json").write_text(text)
            results, _ = self.again()
            self.assertEqual(results.found, {})
