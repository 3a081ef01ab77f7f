"""The process that has PyTorch in it, and the other end of its pipes.

It is a process of its own so that a cell that hangs, or leaves the GPU in an error, costs that cell alone.
"""

import json
import select
import subprocess
import sys
from pathlib import Path

from bench.processes import ENVIRONMENT
from bench.side import answering

from .budget import Budget, BudgetUsedUp, NotRun
from .processes import end, start
from .rows import Row

ENTRY = Path(__file__).resolve().parent.parent / "check_gpu.py"


class Missing(Exception):
    """PyTorch, or its GPU, is not there: what to do about it."""


class Worker:
    """PyTorch's side, as measure.py sees it. The process starts with the first question, and again after its end."""

    def __init__(self, where: str, shape: dict, budget: Budget) -> None:
        self.hello, self.budget = {"where": where, "shape": shape}, budget
        self.process: subprocess.Popen | None = None

    def about(self) -> dict:
        """Versions, and what is known of the GPU."""
        return self._started()["about"]

    def measure(self, row: Row, column: str) -> float:
        """Milliseconds."""
        if self.process is None:
            self._started()
        answer = self._ask({"row": row._asdict(), "column": column})
        if answer.get("broken"):
            self.close()  # the next cell gets a new process
        if "not_run" in answer:
            raise NotRun(answer["not_run"])
        return answer["ms"]

    def close(self) -> None:
        if self.process:
            end(self.process)
            self.process.stdin.close()
            self.process.stdout.close()
            self.process = None

    def _started(self) -> dict:
        command = [sys.executable, "-B", str(ENTRY), "--worker"]
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
        self.process = start(command, **pipes)
        answer = self._ask(self.hello)
        if "missing" in answer:
            self.close()
            raise Missing(answer["missing"])
        return answer

    def _ask(self, question: dict) -> dict:
        try:
            left = self.budget.remaining()
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
            if not select.select([self.process.stdout], [], [], left)[0]:
                raise BudgetUsedUp(self.budget.used_up)
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        except BaseException:
            self.close()  # whatever it works on, nobody waits for it
            raise
        if not line:
            status = self.process.wait()
            self.close()
            raise NotRun(f"the PyTorch process ended with status {status}")
        return json.loads(line)


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def serve() -> None:
    """The process itself: answers questions, one JSON line each, until stdin ends."""
    answer = answering()
    hello = json.loads(sys.stdin.readline())
    try:
        from . import pytorch

        about, side = pytorch.start(hello["where"], hello["shape"])
    except ImportError as missing:
        return answer({"missing": f"{missing}; PyTorch comes with `{sys.executable} -m pip install torch`"})
    except NotRun as missing:
        return answer({"missing": str(missing)})
    answer({"about": about})
    prepared, current = {}, None
    for line in sys.stdin:
        question = json.loads(line)
        row, column = Row(**question["row"]), question["column"]
        if row != current:
            prepared.clear()  # its memory is for the new row
            current = row
        try:
            with pytorch.mode(row):
                if column not in prepared:
                    prepared[column] = side.prepare(row, column)
                answer({"ms": prepared[column]()})
        except Exception as error:  # a backend, a compiler, the GPU's memory: the other cells continue
            kind = "" if isinstance(error, NotRun) else f"{type(error).__name__}: "
            broken = side.broken()
            answer({"not_run": kind + first_line(error), "broken": broken})
            prepared.pop(column, None)
            if broken:
                return
        side.free()
