"""What timing.py asks of a device: a queue of work with marks in it, and how much memory and cache it has.

The self-test has a third device, whose queue and clock are numbers.
"""

import time
from typing import Any, Protocol

L2_BYTES = 64 << 20  # if PyTorch does not know; more than most GPUs have


class Device(Protocol):
    l2_bytes: int

    def synchronize(self) -> None:
        """Waits until the queue is empty."""

    def fill(self, us: float) -> None:
        """Queues about so many microseconds of work, and returns at once."""

    def mark(self) -> Any:
        """Queues a mark."""

    def between(self, start: Any, end: Any) -> float:
        """Waits for the marks, and returns the milliseconds between the moments when the device reached them."""

    def free_bytes(self) -> int:
        """How much memory inputs may take."""


class CpuDevice:
    """For dry runs. Its work is done when a call returns, so that there is no queue to fill."""

    l2_bytes = 64 << 10  # a small number, so that even tiny inputs rotate

    def synchronize(self) -> None:
        pass

    def fill(self, us: float) -> None:
        pass

    def mark(self) -> float:
        return 1e3 * time.perf_counter()

    def between(self, start: float, end: float) -> float:
        return end - start

    def free_bytes(self) -> int:
        return 1 << 30


class CudaDevice:
    def __init__(self) -> None:
        import torch

        self.cuda = torch.cuda
        self.l2_bytes = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0) or L2_BYTES
        self.cycles_per_us = 1e3
        for _ in range(3):  # the clock rises under load; the last one counts
            self.synchronize()
            start = self.mark()
            self.fill(1e3)  # of the clock assumed above
            self.cycles_per_us *= 1.0 / self.between(start, self.mark())

    def synchronize(self) -> None:
        self.cuda.synchronize()

    def fill(self, us: float) -> None:
        self.cuda._sleep(int(us * self.cycles_per_us))  # a kernel that counts clock cycles

    def mark(self) -> Any:
        event = self.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, start: Any, end: Any) -> float:
        end.synchronize()
        return start.elapsed_time(end)

    def free_bytes(self) -> int:
        return self.cuda.mem_get_info()[0]
