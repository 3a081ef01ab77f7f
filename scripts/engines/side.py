"""What every engine answers, whatever its library: one subclass for each, in a module of its own."""

import time
from abc import ABC, abstractmethod
from pathlib import Path


class Side(ABC):
    """One engine with one model loaded. The modules of subclasses import their packages at the top."""

    @abstractmethod
    def __init__(self, folder: Path, form: str, threads: int) -> None:
        """Loads the model of this form from the files in `folder`."""

    @abstractmethod
    def forward(self, ids: list[int], last: bool) -> object:
        """The logits of all positions or of the last one, in whatever the library keeps them."""

    @abstractmethod
    def numbers(self, logits: object):
        """What `forward` returned, as a NumPy array."""

    found: object  # the logits of the last prefill or step, as a NumPy array

    def _empty(self, size: int) -> None:
        """Empties the cache, which has room for so many tokens."""
        raise NotImplementedError

    def _next(self, ids: list[int]) -> int:
        """Appends tokens to the cache; returns the most probable next one."""
        raise NotImplementedError

    def prefill(self, ids: list[int], room: int) -> int:
        """Runs the prompt with an empty cache that has room for more tokens; returns the first new token."""
        self._empty(len(ids) + room)
        return self._next(ids)

    def step(self, token: int) -> int:
        return self._next([token])

    def logits(self, ids: list[int], last: bool):
        """As `forward`, for the comparison."""
        return self.numbers(self.forward(ids, last))

    def cached(self, ids: list[int], token: int):
        """The logits of a step with this token after the prompt, for the comparison."""
        self.prefill(ids, 2)
        self.step(token)
        return self.found

    def decode(self, ids: list[int], count: int) -> tuple[float, list[int]]:
        """The seconds that `count` greedy steps take after the prompt, and the ids that the prompt and each step give."""
        found = [self.prefill(ids, count + 1)]
        start = time.perf_counter()
        for _ in range(count):
            found.append(self.step(found[-1]))
        return time.perf_counter() - start, found

    def beyond(self, isa: str) -> str:
        """Why this engine computes with more than an instruction set; empty if it does not."""
        return ""
