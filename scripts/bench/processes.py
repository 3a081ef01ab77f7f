"""The processes of both sides."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from .rows import INSTALL, QUIET_CPUS, ROOT


class Failure(Exception):
    """What went wrong and what to do about it."""


class Done(NamedTuple):
    stdout: str
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
        if child.returncode != 0:
            stderr.seek(0)
            last = (stderr.read().strip().splitlines() or ["no message"])[-1]
            shown = " ".join(word if len(word) < 80 else "..." for word in words)
            raise Failure(f"`{shown}` ended with status {child.returncode}: {last}")
    return Done(stdout, seconds, 1024 * usage.ru_maxrss)


def write_gpt2(folder: Path, **config: int) -> Path:
    """Writes a GPT-2 with random weights in a process of its own, since `run` counts this one's memory at the start of a child."""
    code = f"import transformers as t; t.GPT2LMHeadModel(t.GPT2Config(**{config})).save_pretrained({str(folder)!r})"
    run(sys.executable, "-c", code)
    return folder


class TorchWorker:
    """The PyTorch process, which stays alive between rounds; a call runs a method of TorchSide in it."""

    def __init__(self) -> None:
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
        self.process = subprocess.Popen([sys.executable, "-B", str(ROOT / "scripts/bench_vs_pytorch.py"), "--worker"], **pipes)

    def __call__(self, call: str, **arguments: object):
        try:
            print(json.dumps({"call": call, "arguments": arguments}), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise Failure(f"the PyTorch process ended during {call}, with status {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise Failure(f"PyTorch, {call}: {answer['error']}\nversions that work: {INSTALL}")
        return answer["result"]


def busy_seconds() -> float:
    """CPU time that all programs have used since the machine started, and the time that its host took away."""
    ticks = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")  # without idling and waiting for the disk


def is_quiet(one: dict) -> bool:
    """Whether no other program disturbed a round."""
    return one["others_cpus"] <= QUIET_CPUS
