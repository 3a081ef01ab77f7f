"""Hook points by name, and Python functions as hooks."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any

import numpy as np

from . import _native
from ._numbers import array_of
from ._types import Hook, HookFunction, LayerIndex, Names

# TransformerLens computes these only where its config asks for them.
_ON_REQUEST = ("hook_attn_in", "hook_q_input", "hook_k_input", "hook_v_input", "hook_mlp_in", "attn.hook_result")

_IN_ATTENTION = {"q", "k", "v", "z", "pattern", "attn_scores", "result"}
_KINDS = {"a": "attn", "attn": "attn", "m": "mlp", "mlp": "mlp", "ln1": "ln1", "ln2": "ln2"}


def full_name(name: str, layer: int, kind: str = "") -> str:
    """The name of a value in a layer by its short form, as TransformerLens' ``get_act_name`` has it."""
    name = {"attn": "pattern", "attn_logits": "attn_scores", "scores": "attn_scores"}.get(name, name)
    part = _KINDS.get(kind, kind) or ("attn" if name in _IN_ATTENTION else "mlp" if name in ("pre", "post") else "")
    return ".".join(filter(None, ["blocks", str(layer), part, f"hook_{name}"]))


ACTIVE: ContextVar[tuple[tuple[_native.Model, list[tuple[str, Any]], list[tuple[str, Any]]], ...]] = ContextVar("hooks", default=())
"""What `Model.hooks` has put on a model in this context: the model, functions of values and functions of gradients."""


def is_short(name: Any) -> bool:
    """Whether this is the short form of a name: ``("z", 0)``."""
    return isinstance(name, tuple) and len(name) in (2, 3) and isinstance(name[0], str) and isinstance(name[1], (int, np.integer)) and not isinstance(name[1], bool)  # pyright: ignore[reportUnknownArgumentType]


def active(model: _native.Model) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    """The functions of values and of gradients that `Model.hooks` has put on a model."""
    mine = [entry for entry in ACTIVE.get() if entry[0] is model]
    return [hook for entry in mine for hook in entry[1]], [hook for entry in mine for hook in entry[2]]


def refuse_hooks(model: _native.Model) -> None:
    """Refuses a call that would leave out the functions that `Model.hooks` has put on a model."""
    if any(active(model)):
        raise ValueError(
            "hooks: passes, gradients and generation run those of `with model.hooks(..)`, and this call would leave them out; "
            "call it outside of the block, or give interventions"
        )


class Points:
    """The hook points of a model."""

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self.shapes: dict[str, str] = {}
        """The shape of the value at each point."""
        self.spellings: dict[str, str] = {}
        """From every name of a point to the one it is called by."""
        for shape, names in _native.point_names(layers):
            self.shapes[names[0]] = shape
            self.spellings.update(dict.fromkeys(names, names[0]))

    def find(self, names: Names) -> list[str]:
        """The points that ``names`` asks for: a name, ``blocks.*.`` and the rest of one, the start of names up to a dot, a short form
        ``("z", 0)``, several, or a function that says which.

        ``None`` is all points that TransformerLens caches by default.
        """
        if names is None:
            return [name for name in self.shapes if not name.endswith(_ON_REQUEST) and name != "logits"]
        if callable(names):
            return [name for name in self.shapes if names(name)]
        several: list[Any] = [names] if isinstance(names, str) or is_short(names) else list(names)
        found: dict[str, None] = {}
        for one in several:
            found.update(dict.fromkeys(self._matching(one)))
        return list(found)

    def _matching(self, name: Any) -> list[str]:
        if is_short(name):
            layer = name[1] + self.layers if name[1] < 0 else name[1]
            if not 0 <= layer < self.layers:
                raise ValueError(f"there is no layer {name[1]}: there are layers 0 to {self.layers - 1}")
            name = full_name(name[0], layer, *name[2:])
        if not isinstance(name, str):
            raise TypeError(f"a hook point's name is a string, or as in ('z', 0), got {name!r}")
        start, star, rest = name.partition(".*.")
        each = [f"{start}.{layer}.{rest}" for layer in range(self.layers)] if star else [name]
        matching = [self.spellings[one] for one in each if one in self.spellings]
        matching = matching or [one for one in self.shapes if name.endswith(".") and one.startswith(tuple(each))]
        if not matching:
            ending = "hook_" + name.rpartition(".")[2].removeprefix("hook_")
            like = [one for one in self.shapes if one.endswith("." + ending)]
            nearest = like[:1] or difflib.get_close_matches(name, self.spellings, 1)
            every = f", and {nearest[0].replace('.0.', '.*.', 1)!r} is that of every layer" if like and ".0." in nearest[0] else ""
            hint = f"; did you mean {nearest[0]!r}{every}?" if nearest else "; model.hook_points lists them"
            raise ValueError(f"there is no hook point {name!r}{hint}")
        return matching

    def hooks(self, fwd_hooks: Iterable[tuple[Names, HookFunction]]) -> list[tuple[str, Any]]:
        """Functions at points, as the native half calls them."""
        found: list[tuple[str, Any]] = []
        for pair in fwd_hooks:
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise TypeError(f"hooks: expected pairs of a point and a function, [(point, function)], got {pair!r}")
            names, function = pair
            if not callable(function):
                raise TypeError(f"the hook at {names!r} is no function: {function!r}")
            for name in self.find(names):
                parts = name.split(".")
                layer = int(parts[1]) if parts[0] == "blocks" else None
                found.append((name, functools.partial(_call, function, Hook(name, None if layer is None else LayerIndex(layer)))))
        return found


def alone(result: Any) -> Any:
    """What a function returns: TransformerLens' backward hooks return a gradient as a tuple."""
    several: list[Any] = list(result) if type(result).__name__ == "tuple" else []
    return several[0] if len(several) == 1 else result


def _call(function: HookFunction, hook: Hook, array: _native.Array) -> _native.Array | None:
    value = np.asarray(array)
    result = alone(function(value, hook))
    if result is None:
        return None
    if result is value:
        return array
    if hasattr(result, "detach"):  # a torch tensor
        result = result.detach()
    return array_of(np.asarray(result), f"the hook at {hook.name}", dtype=value.dtype.name, shape=value.shape)
