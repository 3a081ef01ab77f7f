"""Metrics of predictions: by name, or functions of logits."""

from __future__ import annotations

import functools
import importlib
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from . import _native
from ._numbers import array_of, count
from ._types import Floats, MetricFunction


def torch_metric(function: Callable[..., Any]) -> MetricFunction:
    """A metric in torch, which differentiates it: ``function(logits)`` gets a tensor (B, T, V) and returns a tensor with one number. Over
    pairs, ``function(logits, pair)`` gets the pair, too.

    Example::

        model.grad(text, "blocks.2.hook_resid_pre", metric=torch_metric(lambda logits: logits[0, -1, 12].relu()))
    """

    def differentiated(logits: Floats, call: Callable[[Any], Any]) -> tuple[float, Any]:
        torch: Any = importlib.import_module("torch")
        given = torch.from_dlpack(logits).requires_grad_()
        value = call(given)
        if not value.requires_grad:
            raise ValueError("the metric does not depend on the logits, as torch sees it; leave detach, item and numpy out")
        (gradient,) = torch.autograd.grad(value, given)
        return float(value.detach()), gradient.numpy()

    def of_logits(logits: Floats) -> tuple[float, Any]:
        return differentiated(logits, function)

    def of_pair(logits: Floats, pair: Any) -> tuple[float, Any]:
        return differentiated(logits, lambda given: _of_pair(function, given, pair))

    return of_pair if reads_pairs(function) else of_logits


def reads_pairs(metric: Any) -> bool:
    """Whether a metric is a function that gets the pair that it measures: as a parameter ``pair``, or its second without a default."""
    return _pair_parameter(metric) is not None


def _pair_parameter(metric: Any) -> Literal["named", "second"] | None:
    """How a function gets its pair."""
    if not callable(metric):
        return None
    try:
        parameters = list(inspect.signature(metric, follow_wrapped=False).parameters.values())
        if any(one.kind == one.VAR_POSITIONAL for one in parameters):  # a decorator's
            parameters = list(inspect.signature(metric).parameters.values())
    except (TypeError, ValueError):  # some functions of C say nothing of theirs
        return None
    bound = metric.keywords if isinstance(metric, functools.partial) else {}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    if any(one.name == "pair" and one.kind in named for one in parameters[1:]) and "pair" not in bound:
        return "named"
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return "second" if len([one for one in positional if one.default is one.empty]) == 2 else None


def _of_pair(metric: Callable[..., Any], logits: Any, pair: Any) -> Any:
    return metric(logits, pair=pair) if _pair_parameter(metric) == "named" else metric(logits, pair)


NativeMetric = Callable[[_native.Array, "int | None"], "tuple[float, _native.Array]"]
"""A metric as the native half calls it: with the logits, and the place of the pair in a study of pairs."""


def native_function(metric: Any, pairs: Sequence[Any] | None = None) -> NativeMetric:
    """A metric for the native half; ``pairs`` for one that reads its pair."""

    def call(array: _native.Array, pair: int | None) -> tuple[float, _native.Array]:
        logits = np.asarray(array)
        found: Any = metric(logits) if pairs is None or pair is None else _of_pair(metric, logits, pairs[pair])
        both: list[Any] = list(found) if isinstance(found, (tuple, list)) else []  # pyright: ignore[reportUnknownArgumentType]
        if len(both) != 2:
            raise TypeError(f"the metric: expected its value and its gradient, got {found!r}; torch_metric differentiates")
        value, gradient = both
        if hasattr(gradient, "detach"):  # a torch tensor
            gradient = gradient.detach()
        number = float(value.detach() if hasattr(value, "detach") else value)
        if not math.isfinite(number):
            raise ValueError(f"the metric is {number}, expected a finite number")
        slope = array_of(np.asarray(gradient), "the metric's gradient", dtype=logits.dtype.name, shape=logits.shape)
        if not np.isfinite(np.asarray(slope)).all():
            raise ValueError("the metric's gradient has NaN or infinity; where it is not defined, or nobody reads it, return zeros")
        return number, slope

    return call


def positions_of(positions: int | Sequence[int] | None) -> list[int]:
    """The positions over which a metric is averaged."""
    if positions is None:
        return []
    several = [positions] if isinstance(positions, (int, np.integer)) else list(positions)
    if not several:
        raise ValueError("positions: there is none; give one at least")
    below = [int(one) for one in several if isinstance(one, (int, np.integer)) and one < 0]
    if below:
        raise ValueError(f"positions: {below[0]} is below 0; positions count from 0, and if you leave them out, the last one is measured")
    return [count(one, "positions") for one in several]
