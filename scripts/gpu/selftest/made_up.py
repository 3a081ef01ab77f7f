"""A GPU whose queue and clock are numbers, and two sides that need made-up time."""

from gpu.budget import Budget
from gpu.rows import Row


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class MadeUpDevice:
    """Microseconds. The host queues work and goes on; the device works on one thing after another."""

    def __init__(self, l2_bytes: int = 1000, free: int = 10**9) -> None:
        self.l2_bytes, self.free = l2_bytes, free
        self.host = self.idle_from = 0.0

    def launch(self, dispatch: float, kernel: float) -> None:
        """The host needs `dispatch` to queue a kernel, and the device `kernel` to run it."""
        self.host += dispatch
        self.idle_from = max(self.host, self.idle_from) + kernel

    def synchronize(self) -> None:
        self.host = max(self.host, self.idle_from)

    def fill(self, us: float) -> None:
        self.launch(0, us)

    def mark(self) -> float:
        return max(self.host, self.idle_from)

    def between(self, start: float, end: float) -> float:
        self.host = max(self.host, end)
        return (end - start) / 1e3

    def free_bytes(self) -> int:
        return self.free


class MadeUpSide:
    """Either side: `values` by column, which may be errors; each measurement takes a while on the clock."""

    def __init__(self, clock: Clock, seconds: float, values: dict) -> None:
        self.clock, self.seconds, self.values, self.asked = clock, seconds, values, []

    def measure(self, row: Row, column: str):
        self.clock.now += self.seconds
        self.asked.append((row, column))
        value = self.values[column]
        if isinstance(value, BaseException):
            raise value
        return dict(value) if isinstance(value, dict) else value


def budget(seconds: float) -> tuple[Budget, Clock]:
    clock = Clock()
    return Budget(seconds, clock), clock
