"""Times calls so that neither the host nor the cache can change the figure.

Work reaches a GPU through a queue. If the queue is empty, the device waits while the host prepares the next call, and
that wait would count as the call's. So a filler is queued first: while the device works on it, the host runs ahead.
A host that needs longer for a call than the device is still seen, because over many calls the device catches up.
"""

from collections.abc import Callable
from math import ceil
from statistics import median
from typing import Any

from .device import Device

FILLER_US = 200
WARM_UP = 3
SETS = 5
# Rows that were timed in another way are not comparable; `--resume` asks.
METHOD = f"filler of {FILLER_US} us, then N calls between two marks, median of {SETS} sets; inputs above 2 x L2 in turn"


def time_calls(
    device: Device, runs: int, call: Callable[[], object], before: Callable[[], object] | None = None
) -> float:
    """The milliseconds that a call takes. `before` is not timed; with it, each call is timed alone."""
    sets, calls = (runs, 1) if before else (min(SETS, runs), ceil(runs / SETS))
    before = before or (lambda: None)
    for _ in range(WARM_UP):
        before()
        call()
    times = []
    for _ in range(sets):
        before()
        device.synchronize()
        device.fill(FILLER_US)
        start = device.mark()
        for _ in range(calls):
            call()
        times.append(device.between(start, device.mark()) / calls)
    return median(times)


def copies(device: Device, set_bytes: int) -> int:
    """How many sets of inputs and outputs, used in turn, are more than twice the L2: so none is still there."""
    return max(1, min(2 * device.l2_bytes // set_bytes + 1, device.free_bytes() // 4 // set_bytes))


class Rotation:
    """Inputs that take turns. Each result lives until its turn comes again, so that results take other memory, too."""

    def __init__(self, device: Device, set_bytes: int, make: Callable[[], Any]) -> None:
        self.inputs = [make() for _ in range(copies(device, set_bytes))]
        self.results: list[Any] = [None] * len(self.inputs)
        self.turn = 0

    def calling(self, run: Callable[[Any], object]) -> Callable[[], None]:
        def call() -> None:
            self.turn = (self.turn + 1) % len(self.inputs)
            self.results[self.turn] = run(self.inputs[self.turn])

        for _ in self.inputs:
            call()  # now, while nothing is timed, the results get their memory
        return call
