"""Numbers and arrays that come in, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _native

_DTYPES = ("float16", "float32", "float64", "uint32")


def array_of(values: Any, what: str, *, dtype: str | None = None, shape: Sequence[int] | None = None) -> _native.Array:
    """A copy of numbers for the native half."""
    values = np.asarray(values)
    if values.dtype.kind not in "fiub":
        raise TypeError(f"{what}: expected numbers, got an array of {values.dtype}")
    if shape is not None and values.shape != tuple(shape):
        raise ValueError(f"{what}: expected an array of shape {tuple(shape)}, got {values.shape}")
    name = dtype or (values.dtype.name if values.dtype.name in _DTYPES else "float32")
    array = _native.Array.zeros(list(values.shape), name)
    np.asarray(array)[...] = values
    return array


def count(number: Any, what: str, at_least: int = 0, at_most: int = 2**63 - 1) -> int:
    """A number that counts something."""
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)):
        raise TypeError(f"{what}: expected a whole number, got {number!r}")
    found = int(number)  # pyright: ignore[reportUnknownArgumentType]
    if not at_least <= found <= at_most:
        most = "" if at_most == 2**63 - 1 else f" and at most {at_most}"
        raise ValueError(f"{what} is {found}, expected a number of at least {at_least}{most}")
    return found


def maybe(number: Any, what: str, at_least: int = 0) -> int | None:
    """The number that counts something, if there is one."""
    return None if number is None else count(number, what, at_least)
