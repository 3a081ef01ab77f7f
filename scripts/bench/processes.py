"""The processes of both sides."""

import argparse
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from .rows import QUIET_CPUS, QUIET_S, ROOT

LIBC = ctypes.CDLL(None)  # before any fork: a child must not load anything
PR_SET_PDEATHSIG = 1


class Failure(Exception):
    """What went wrong and what to do about it."""


class Done(NamedTuple):
    stdout: str
    stderr: str
    seconds: float
    peak_bytes: int


# Let Python keep its bytecode, or PyTorch's start would be one long compilation; no network is needed.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"HF_HUB_OFFLINE": "1"}


def hold(isas: dict[str, dict[str, str]], isa: str | None) -> None:
    """Holds every process started from now on to an instruction set, or to none whatever the environment says."""
    for variables in isas.values():
        for name in variables:
            ENVIRONMENT.pop(name, None)
    ENVIRONMENT.update(isas.get(isa, {}))


def run(*command: object) -> Done:
    """Runs a fresh process to its end: its output, wall-clock time and peak resident memory."""
    words = [str(word) for word in command]
    pipes = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=ENVIRONMENT)
    with tempfile.TemporaryFile("w+") as stderr:
        start = time.perf_counter()
        # preexec_fn forces a fork: the peak of a vforked child would start at this process's own.
        child = subprocess.Popen(words, stderr=stderr, preexec_fn=lambda: None, **pipes)
        try:
            with child.stdout:
                stdout = child.stdout.read()
            _, status, usage = os.wait4(child.pid, 0)
            seconds = time.perf_counter() - start
            child.returncode = os.waitstatus_to_exitcode(status)
        finally:
            if child.returncode is None:
                child.kill()
                child.wait()
        stderr.seek(0)
        errors = stderr.read()
        if child.returncode != 0:
            last = (errors.strip().splitlines() or ["no message"])[-1]
            shown = " ".join(word if len(word) < 80 else "..." for word in words)
            raise Failure(f"`{shown}` ended with status {child.returncode}: {last}")
    return Done(stdout, errors, seconds, 1024 * usage.ru_maxrss)


def write_gpt2(folder: Path, **config: int) -> Path:
    """Writes a GPT-2 with random weights in a process of its own, since `run` counts this one's memory at the start of a child."""
    code = f"import transformers as t; t.GPT2LMHeadModel(t.GPT2Config(**{config})).save_pretrained({str(folder)!r})"
    run(sys.executable, "-c", code)
    return folder


def die_with_parent() -> None:
    """For a child: it ends if this process is killed."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Worker:
    """A Python process that stays alive between rounds; a call runs a method of what it serves (side.py)."""

    patience: int | None = None  # seconds for an answer
    advice = ""  # behind an error

    def __init__(self, title: str, *command: object, **options: object) -> None:
        self.title = title
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=ENVIRONMENT) | options
        self.process = subprocess.Popen(list(map(str, command)), preexec_fn=die_with_parent, **pipes)

    def __call__(self, call: str, **arguments: object):
        try:
            print(json.dumps({"call": call, "arguments": arguments}), file=self.process.stdin, flush=True)
            ready, _, _ = select.select([self.process.stdout], [], [], self.patience)
            line = self.process.stdout.readline() if ready else ""
        except BrokenPipeError:
            line, ready = "", True
        if not ready:
            self.process.kill()  # or its late answer would be read as the next one
            raise Failure(f"{self.title} gave no answer to {call} in {self.patience} s; leave it out with --engines")
        if not line:
            raise Failure(f"the process of {self.title} ended during {call}, with status {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise Failure(f"{self.title}, {call}: {' '.join(answer['error'].split())}{self.advice}")
        return answer["result"]

    def seconds(self) -> float:
        """CPU time of this process and of its children that ended."""
        if self.process.poll() is not None:
            return 0.0
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return sum(map(int, stat[11:15])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def busy_seconds() -> float:
    """CPU time that all programs have used since the machine started, and the time that its host took away."""
    ticks = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")  # without idling and waiting for the disk


def is_quiet(one: dict) -> bool:
    """Whether no other program disturbed a round."""
    return one["others_cpus"] <= QUIET_CPUS


def watch(work: Callable[[], object], workers: Iterable[Worker]) -> tuple:
    """Waits until all threads sleep, does the work, and returns also how many CPUs other programs used meanwhile."""

    def others() -> float:  # without this process, its ended children and the workers
        return busy_seconds() - sum(worker.seconds() for worker in workers) - sum(os.times()[:4])

    start, before = time.perf_counter(), others()
    time.sleep(QUIET_S)
    result = work()
    return result, (others() - before) / (time.perf_counter() - start)


def check(parser: argparse.ArgumentParser, args: argparse.Namespace, needed: list[str], install: str) -> None:
    """Refuses packages and a binary that are not there."""
    if missing := [name for name in needed if find_spec(name) is None]:
        parser.error(f"{sys.executable} has no {', '.join(missing)}; `{install}` installs the missing packages")
    if not args.binary.is_file():
        parser.error(f"{args.binary} does not exist; `cargo build --release --workspace` builds it")


def status_of(work: Callable[[], int]) -> int:
    """The exit status of a script that does this work. SIGTERM unwinds it, so that no process or folder stays behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return work()
    except (Failure, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
