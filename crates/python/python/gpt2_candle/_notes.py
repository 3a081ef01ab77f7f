"""Notes of the engine as Python's warnings."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable


def warn(notes: Iterable[str]) -> None:
    """Warns of each note, at the line that called the package."""
    frame = sys._getframe()
    level = 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
        frame = frame.f_back
        level += 1
    for note in notes:
        warnings.warn(note.removeprefix("warning: "), stacklevel=level)
