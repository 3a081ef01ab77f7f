"""Both sides as processes: the `gpt2` binary, and a worker for each engine."""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.processes import ENVIRONMENT, Done, Failure, busy_seconds, run
from bench.rows import QUIET_S, ROOT, prompt

from .rows import Column, Ours, Row

SCRIPT = ROOT / "scripts/bench_vs_engines.py"
PYTHON = [sys.executable, "-B", str(SCRIPT)]
PATIENCE = 1800  # seconds for an answer: torch.compile compiles as it first runs
PR_SET_PDEATHSIG = 1


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


class Worker:
    """An engine's process. It is stopped between its turns, so that threads of one never spin while another is timed."""

    def __init__(self, column: Column, folder: Path, threads: int, vocab_size: int) -> None:
        self.column, self.vocab_size = column, vocab_size
        self.model = [column.engine, column.form, str(folder), str(threads)]
        libc = ctypes.CDLL(None)  # before the fork: the child must not load anything

        def die_with_parent() -> None:  # a stopped process would stay forever
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=ENVIRONMENT)
        self.process = subprocess.Popen([*PYTHON, "--serve", *self.model], preexec_fn=die_with_parent, **pipes)

    def __call__(self, call: str, **arguments: object):
        try:
            print(json.dumps({"call": call, "arguments": arguments}), file=self.process.stdin, flush=True)
            ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
            line = self.process.stdout.readline() if ready else ""
        except BrokenPipeError:
            line, ready = "", True
        if not ready:
            self.process.kill()  # or its late answer would be read as the next one
            raise Failure(f"{self.column.title} gave no answer to {call} in {PATIENCE} s; leave it out with --engines")
        if not line:
            raise Failure(f"the process of {self.column.title} ended during {call}, with status {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise Failure(f"{self.column.title}, {call}: {' '.join(answer['error'].split())}")
        return answer["result"]

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

    def seconds(self) -> float:
        """CPU time of this process and of its children that ended."""
        if self.process.poll() is not None:
            return 0.0
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return sum(map(int, stat[11:15])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def watch(work: Callable[[], dict], workers: list[Worker]) -> dict:
    """Does the work once all is still, and adds how many CPUs other programs used meanwhile."""

    def others() -> float:
        return busy_seconds() - sum(worker.seconds() for worker in workers) - sum(os.times()[:4])

    start, before = time.perf_counter(), others()
    time.sleep(QUIET_S)
    result = work()
    return result | {"others_cpus": (others() - before) / (time.perf_counter() - start)}


def write(engine: str, folder: Path, *shape: str) -> Done:
    """The checkpoint or an engine's files, written by a process of its own."""
    return run(*PYTHON, "--write", engine, folder, *shape)
