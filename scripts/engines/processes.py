"""Both sides as processes: the `gpt2` binary, and a worker for each engine."""

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.processes import Done, Worker, run
from bench.rows import ROOT, prompt

from .rows import Column, Ours, Row

PYTHON = [sys.executable, "-B", str(ROOT / "scripts/bench_vs_engines.py")]


class Binary:
    """Our side."""

    def __init__(self, binary: Path, folder: Path, threads: int, vocab_size: int) -> None:
        self.binary, self.folder, self.threads, self.vocab_size = binary, folder, threads, vocab_size

    def model(self, form: str) -> list[object]:
        if form in ("f32", "bf16"):
            return ["--model", self.folder / "checkpoint", "--dtype", form]
        return ["--model", self.folder / f"{form}.gguf"]

    def quantize(self, form: str) -> list[object]:
        return [self.binary, "--quiet", "quantize", self.folder / "checkpoint", "--to", form, "--out", self.folder / f"{form}.gguf"]

    def command_of(self, what: str, ours: Ours) -> list[object]:
        return [self.binary, "--quiet", *what.split(), "--threads", self.threads, *self.model(ours.form)]

    def generate(self, ids: list[int], count: int, ours: Ours) -> list[object]:
        words = ["--greedy", "--json", "--ids", ",".join(map(str, ids)), "--max-new-tokens", count, "--kv", ours.kv]
        return [*self.command_of("generate", ours), *words]

    def command(self, row: Row, ours: Ours) -> list[object]:
        """What computes a row."""
        if row.kind == "start":
            return self.generate(prompt(row.tokens, self.vocab_size), 1, ours)
        size = ["--json", "--tokens", row.tokens, "--runs", row.runs]
        if row.kind == "token":
            return [*self.command_of("bench decode", ours), *size, "--new-tokens", row.new_tokens, "--kv", ours.kv]
        return [*self.command_of("bench forward", ours), *size, *(["--last"] if row.last else [])]

    def measure(self, row: Row, ours: Ours) -> dict:
        """The fastest and the median of a round's runs."""
        if row.kind == "start":
            return spread([run(*self.command(row, ours)).seconds for _ in range(1 + row.runs)][1:])
        done = run(*self.command(row, ours))
        if row.kind == "memory":
            return spread([done.peak_bytes / 1e9])
        found, each = json.loads(done.stdout), max(1, row.new_tokens)
        return {"fastest": found["min_ms"] / each, "median": found["median_ms"] / each}


def spread(times: list[float]) -> dict:
    ordered, middle = sorted(times), len(times) // 2
    median = ordered[middle] if len(times) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return {"fastest": ordered[0], "median": median}


class Engine(Worker):
    """An engine's process. It is stopped between its turns, so that threads of one never spin while another is timed."""

    patience = 1800  # torch.compile compiles as it first runs

    def __init__(self, column: Column, folder: Path, threads: int, vocab_size: int) -> None:
        self.column, self.vocab_size = column, vocab_size
        self.model = [column.engine, column.form, str(folder), str(threads)]
        super().__init__(column.title, *PYTHON, "--serve", *self.model)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Runs for the time of a `with`."""
        self.process.send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGSTOP)

    def measure(self, row: Row) -> dict:
        ids = prompt(row.tokens, self.vocab_size)
        if row.kind in ("start", "memory"):
            command = [*PYTHON, "--fresh", row.kind, *self.model, json.dumps(ids)]
            done = [run(*command) for _ in range(1 + row.runs if row.kind == "start" else row.runs)]
            return spread([float(one.stdout) for one in done][1:] if row.kind == "start" else [done[0].peak_bytes / 1e9])
        options = dict(kind=row.kind, ids=ids, last=row.last, runs=row.runs, new_tokens=row.new_tokens)
        with self.turn():
            return spread(self("time", **options))


def write(engine: str, folder: Path, *shape: str) -> Done:
    """The checkpoint or an engine's files, written by a process of its own."""
    return run(*PYTHON, "--write", engine, folder, *shape)
