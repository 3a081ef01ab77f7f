"""The process of one engine: a worker that stays alive between rounds, and a fresh one for its start and its memory."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from .side import Side


def module(engine: str):
    """Its module. Nothing but this engine's packages is imported, or its memory would be theirs too."""
    if engine == "onnxruntime":
        from . import onnxruntime_side as found
    elif engine == "openvino":
        from . import openvino_side as found
    elif engine == "ctranslate2":
        from . import ctranslate2_side as found
    elif engine == "llama.cpp":
        from . import llama_side as found
    else:
        from . import torch_side as found
    return found


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
        times = []
        for _ in range(1 + runs):
            if kind == "token":
                times.append(1e3 * self.side.decode(ids, new_tokens)[0] / new_tokens)
                continue
            start = time.perf_counter()
            self.side.forward(ids, last)
            times.append(1e3 * (time.perf_counter() - start))
        return times[1:]


def serve(*model: str) -> int:
    """Answers requests, one JSON line each, until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when this ends
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a library's output is not an answer
    requests = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            requests = requests or Requests(*model)
            answer = {"result": getattr(requests, request["call"])(**request["arguments"])}
        except Exception as error:  # the parent reports any error
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
    return 0


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
    return {"--serve": serve, "--fresh": fresh, "--write": write}[task](*arguments)
