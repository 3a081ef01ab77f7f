"""Compares what the engines compute, then measures them in turn."""

import json
from array import array
from contextlib import ExitStack
from dataclasses import asdict
from math import inf, isfinite
from statistics import median

from bench.processes import Failure, is_quiet, run, watch
from bench.report import amount, progress
from bench.rows import prompt

from .processes import Binary, Engine, write
from .rows import CACHED, TOLERANCES, Column, Ours, Row

GGUF = ("f16", "q8_0", "q4_0")
GREEDY = 8


def write_files(binary: Binary, columns: list[Column], shape: dict) -> None:
    progress("writing the checkpoint")
    write("checkpoint", binary.folder, json.dumps(shape))
    for form in GGUF:
        if any(column.ours.form == form for column in columns):
            progress(f"writing {form}.gguf")
            run(*binary.quantize(form))
    for engine in dict.fromkeys(column.engine for column in columns):
        if engine in ("onnxruntime", "openvino", "ctranslate2"):
            progress(f"writing the files of {engine}")
            write(engine, binary.folder)


class Comparison:
    """The logits and greedy ids of our f32, beside those of everything else."""

    def __init__(self, binary: Binary, rows: list[Row]) -> None:
        self.binary = binary
        self.prompts = [row.tokens for row in rows if row.kind == "token"] or [16]
        lasts = [(row.tokens, True) for row in rows if row.kind in ("forward", "memory")]
        self.checks = list(dict.fromkeys([(20, False), *lasts]))  # of a long prompt, only the last logits
        f32 = Ours("f32")
        self.logits = {(length, last): self._ours(self._prompt(length), last, f32) for length, last in self.checks}
        self.ids = {length: self._greedy(length, f32) for length in self.prompts}
        extended = {length: [*self._prompt(length), self.ids[length][0]] for length in self.prompts}
        self.cached = {length: self._ours(ids, True, f32) for length, ids in extended.items()}

    def ours(self, ours: Ours) -> dict:
        found = [difference(self._ours(self._prompt(n), last, ours), self.logits[n, last]) for n, last in self.checks]
        ids = {length: self._greedy(length, ours) for length in self.prompts}
        return self._judge(f"our {ours.form}", ours.form, max(found), ids)

    def theirs(self, worker: Engine) -> dict:
        """Logits by the calls that are timed, those of a step with the cache, and the ids that it gives."""
        file, found = self.binary.folder / "logits.f32", []
        for length, last in self.checks:
            worker("logits", ids=self._prompt(length), last=last, file=str(file))
            found.append(difference(array("f", file.read_bytes()), self.logits[length, last]))
        form = "f32" if worker.column.form == "compiled" else worker.column.form
        for length in self.prompts if form == "f32" else []:  # other forms may find another token, and have the same code
            worker("cached", ids=self._prompt(length), token=self.ids[length][0], file=str(file))
            found.append(difference(array("f", file.read_bytes()), self.cached[length]))
        ids = {length: worker("greedy", ids=self._prompt(length), count=GREEDY) for length in self.prompts}
        return self._judge(worker.column.title, form, max(found), ids)

    def _prompt(self, length: int) -> list[int]:
        return prompt(length, self.binary.vocab_size)

    def _greedy(self, length: int, ours: Ours) -> list[int]:
        done = run(*self.binary.generate(self._prompt(length), GREEDY, ours))
        return json.loads(done.stdout)["ids"]

    def _ours(self, ids: list[int], last: bool, ours: Ours) -> array:
        """The logits that `gpt2 forward --export` writes, all or the last."""
        file = self.binary.folder / "export.safetensors"
        run(*self.binary.command_of("forward", ours), "--ids", ",".join(map(str, ids)), "--export", file)
        with file.open("rb") as content:
            header = int.from_bytes(content.read(8), "little")
            entry = json.loads(content.read(header))["logits"]
            if entry["dtype"] != "F32":
                raise Failure(f"`gpt2 forward --export` wrote logits in {entry['dtype']}, where F32 was expected")
            begin, end = entry["data_offsets"]
            content.seek(8 + header + (end - 4 * self.binary.vocab_size if last else begin))
            found = array("f", content.read(4 * self.binary.vocab_size * (1 if last else len(ids))))
        file.unlink()
        return found

    def _judge(self, title: str, form: str, found: float, ids: dict) -> dict:
        equal = sum(one == other for length in self.prompts for one, other in zip(ids[length], self.ids[length]))
        count = GREEDY * len(self.prompts)
        progress(f"{title}: logits within {found:.1e} of our f32, {equal} of {count} greedy ids equal")
        if found > TOLERANCES[form]:
            raise Failure(f"{title} was not timed: its logits differ from our f32 by {found:.1e}, allowed is {TOLERANCES[form]}")
        if form == "f32" and ids != self.ids:
            raise Failure(f"{title} was not timed: its greedy ids are {ids}, but ours {self.ids}")
        return {"logits": found, "equal_ids": equal, "ids": count}


def difference(found: array, expected: array) -> float:
    """The largest difference, relative to the largest number."""
    if len(found) != len(expected):
        raise Failure(f"{len(found)} logits were computed, {len(expected)} were expected")
    if not all(map(isfinite, found)):
        return inf
    return max(abs(one - other) for one, other in zip(found, expected)) / max(map(abs, expected))  # no list: see `run`


def measure(binary: Binary, columns: list[Column], rows: list[Row], rounds: int, isa: str | None) -> dict:
    """Everything: the comparison, the rounds, and their results."""
    report: dict = {"agreement": {}, "beyond": {}, "refused": [], "cells": []}
    comparison = Comparison(binary, rows)
    for ours in dict.fromkeys(column.ours for column in columns):
        if ours.form != "f32":
            report["agreement"][f"ours {ours.form}, cache {ours.kv}"] = comparison.ours(ours)
    with ExitStack() as stack:
        workers = []
        for column in columns:
            worker = Engine(column, binary.folder, binary.threads, binary.vocab_size)
            stack.callback(worker.close)
            try:
                with worker.turn():
                    report["agreement"][column.title] = comparison.theirs(worker)
                    if isa and (why := worker("beyond", isa=isa)):
                        report["beyond"][column.title] = why
                workers.append(worker)
            except Failure as error:
                progress(f"left out: {error}")
                report["refused"].append(str(error))
                worker.close()
        del comparison  # a child's peak memory begins at this process's own
        report["cells"] = take_turns(binary, workers, rows, rounds, report["refused"])
    return report


def take_turns(binary: Binary, workers: list[Engine], rows: list[Row], rounds: int, refused: list[str]) -> list[dict]:
    """In each round, all sides of a row one after another; another one begins each time. Adds to `refused` what fails."""
    sides = {row: row_sides(row, workers) for row in rows}
    found: dict = {(row, side): [] for row in rows for side in sides[row]}

    def drop(row: Row, side: Engine, error: Failure) -> None:
        progress(f"left out: {row.label}: {error}")
        refused.append(f"{row.label}: {error}")
        del found[row, side]
        sides[row] = [other for other in sides[row] if other is not side]

    for number in range(rounds):
        for row in rows:
            turn = number % max(1, len(sides[row]))
            for side in sides[row][turn:] + sides[row][:turn]:
                ours = isinstance(side, Ours)
                title = f"our {side.title(row)}" if ours else side.column.title
                try:
                    one, others = watch(lambda: binary.measure(row, side) if ours else side.measure(row), workers)
                except Failure as error:
                    if ours:
                        raise
                    drop(row, side, error)
                    continue
                one["others_cpus"] = others
                found[row, side].append(one)
                note = "" if is_quiet(one) else f"  DISTURBED: others used {one['others_cpus']:.1f} CPUs"
                progress(f"round {number + 1}, {row.label}, {title}: {amount(one['fastest'], row.unit)}{note}")
    return [result(row, side, found) for row, side in found if isinstance(side, Engine)]


def result(row: Row, worker: Engine, found: dict) -> dict:
    """One cell: an engine in a row, beside our form of its column."""
    form = beside(row, worker.column.ours)
    ours, theirs = summary(found[row, form]), summary(found[row, worker])
    cell = {"row": asdict(row) | {"label": row.label, "unit": row.unit}, "column": worker.column.title}
    cell |= {"form": form.form, "beside": form.title(row), "ours": ours, "theirs": theirs}
    return cell | {"ratio": ours["fastest"] / theirs["fastest"]}


def row_sides(row: Row, workers: list[Engine]) -> list[Ours | Engine]:
    theirs = [worker for worker in workers if worker.column.runs(row)]
    return [*dict.fromkeys(beside(row, worker.column.ours) for worker in theirs), *theirs]


def beside(row: Row, ours: Ours) -> Ours:
    """Other rows hardly read the cache, and run each form once."""
    return ours if row.kind in CACHED else Ours(ours.form)


def summary(rounds: list[dict]) -> dict:
    """The fastest run and the median of the rounds' medians, of the undisturbed rounds if there are any."""
    quiet = [one for one in rounds if is_quiet(one)]
    counted = quiet or rounds
    fastest, middle = min(one["fastest"] for one in counted), median(one["median"] for one in counted)
    return {"fastest": fastest, "median": middle, "disturbed": not quiet, "rounds": rounds}
