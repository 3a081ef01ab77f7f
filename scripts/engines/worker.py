"""The process of one engine: a worker that stays alive between rounds, and a fresh one for its start and its memory."""

import json
import time
from importlib import import_module
from pathlib import Path

from bench.side import milliseconds, serve

from .side import Side


SHORT = {"llama.cpp": "llama", "pytorch": "torch"}


def module(engine: str):
    """Its module. Nothing but this engine's packages is imported, or its memory would be theirs too."""
    return import_module(f"engines.{SHORT.get(engine, engine)}_side")


class Requests:
    """What the worker answers: one method for each request."""

    def __init__(self, engine: str, form: str, folder: str, threads: str) -> None:
        self.side: Side = module(engine).Engine(Path(folder), form, int(threads))

    def logits(self, ids: list[int], last: bool, file: str) -> None:
        """Writes them to a file, as f32 in the machine's order."""
        self.side.logits(ids, last).astype("float32").tofile(file)

    def cached(self, ids: list[int], token: int, file: str) -> None:
        """The same for the logits of a step with this token after the prompt."""
        self.side.cached(ids, token).astype("float32").tofile(file)

    def greedy(self, ids: list[int], count: int) -> list[int]:
        return self.side.decode(ids, count - 1)[1]

    def beyond(self, isa: str) -> str:
        return self.side.beyond(isa)

    def time(self, kind: str, ids: list[int], last: bool, runs: int, new_tokens: int) -> list[float]:
        """Milliseconds of each timed run, or of a token of it; one more run before them is not timed."""
        if kind == "token":
            return [1e3 * self.side.decode(ids, new_tokens)[0] / new_tokens for _ in range(1 + runs)][1:]
        return milliseconds(lambda: self.side.forward(ids, last), runs)


def fresh(kind: str, engine: str, form: str, folder: str, threads: str, ids: str) -> int:
    """Loads the model and computes once; prints the seconds, without those of Python and of the imports."""
    found, prompt = module(engine), json.loads(ids)
    start = time.perf_counter()
    side = found.Engine(Path(folder), form, int(threads))
    if kind == "start":
        side.prefill(prompt, 1)
    else:
        side.forward(prompt, last=True)
    print(time.perf_counter() - start, flush=True)
    return 0


def write(engine: str, folder: str, shape: str = "") -> int:
    """Writes the checkpoint, or an engine's files from it."""
    checkpoint = Path(folder) / "checkpoint"
    if engine == "checkpoint":
        from . import weights

        weights.write(checkpoint, json.loads(shape))
    else:
        module(engine).write(Path(folder) / engine, checkpoint)
    return 0


def main(task: str, *arguments: str) -> int:
    if task == "--serve":
        return serve(lambda: Requests(*arguments))
    return {"--fresh": fresh, "--write": write}[task](*arguments)
