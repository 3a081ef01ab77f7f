"""What runs in a side's own process. It imports little, since what it imports counts as the side's memory and start."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable


def answering() -> Callable[[dict], None]:
    """What sends an answer, one JSON line each. Whatever a library prints goes to stderr."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when this ends
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return lambda value: print(json.dumps(value), file=answers, flush=True)


def serve(make: Callable[[], object]) -> int:
    """Answers the calls of a `Worker` until stdin ends: each names a method of what `make` returns."""
    answer, side = answering(), None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            side = side or make()
            found = {"result": getattr(side, request["call"])(**request["arguments"])}
        except Exception as error:  # the parent reports any error
            found = {"error": f"{type(error).__name__}: {error}"}
        answer(found)
    return 0


def milliseconds(work: Callable[[], object], runs: int) -> list[float]:
    """How long each run takes, after one that is not timed."""
    times = []
    for _ in range(1 + runs):
        start = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - start))
    return times[1:]
