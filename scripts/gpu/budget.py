"""How much time is left, and the two ways in which work ends without a result."""

import time
from collections.abc import Callable


class NotRun(Exception):
    """Why a cell of the table stays empty."""


class BudgetUsedUp(Exception):
    """No time is left: stop, and say what was not reached."""


class Budget:
    """Counts down from the moment it is made."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.clock, self.start = seconds, clock, clock()

    @property
    def used_up(self) -> str:
        return f"the budget of {self.seconds:g} s was used up"

    def remaining(self) -> float:
        """The seconds left, more than 0; raises `BudgetUsedUp` if there are none."""
        left = self.seconds - (self.clock() - self.start)
        if left <= 0:
            raise BudgetUsedUp(self.used_up)
        return left
