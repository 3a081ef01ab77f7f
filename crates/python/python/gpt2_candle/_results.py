"""What the model returns."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _native
from ._types import Floats

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    import pandas


@dataclass(frozen=True)
class Output:
    """The results of a pass over B texts. Shorter texts are padded on the left to T tokens."""

    ids: list[list[int]]
    """The tokens of each text."""
    logits: Floats
    """(B, T, V)"""
    loss: float | None = None
    """The mean surprise of each token but the first, in nats, if it was asked for."""
    hidden_states: tuple[Floats, ...] = ()
    """L + 1 arrays (B, T, C): the embeddings, then the stream after each block, the last one after ``ln_f``."""
    attentions: tuple[Floats, ...] = ()
    """L arrays (B, H, T, T)."""

    def __repr__(self) -> str:
        parts = [f"logits {_shape(self.logits)}"]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4f}")
        if self.hidden_states:
            parts.append(f"{len(self.hidden_states)} hidden states {_shape(self.hidden_states[0])}")
        if self.attentions:
            parts.append(f"{len(self.attentions)} attentions {_shape(self.attentions[0])}")
        return f"Output({', '.join(parts)})"


class Cache(Mapping[str, "Floats"]):
    """The values of a pass at hook points, by name. Any name of a point leads to it: those of TransformerLens 2.x and 4.x, and
    its short form ``cache["pattern", 0]``.
    """

    def __init__(self, values: Mapping[str, _native.Array | _native.Pattern], spellings: Mapping[str, str]) -> None:
        self._values: dict[str, Floats | _native.Pattern] = {
            name: value if isinstance(value, _native.Pattern) else np.asarray(value) for name, value in values.items()
        }
        self._spellings = spellings

    def __getitem__(self, name: str | tuple[str, int] | tuple[str, int, str]) -> Floats:
        asked = name if isinstance(name, str) else _full_name(name[0], name[1], "" if len(name) == 2 else name[2])
        called = self._spellings.get(asked, asked)
        found = self._values.get(called)
        if isinstance(found, _native.Pattern):
            found = self._values[called] = np.asarray(found.array())
        if found is None:
            known = ", ".join(list(self._values)[:4])
            raise KeyError(f"{asked!r} is not in the cache, which has {len(self._values)} values: {known}, ...")
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._spellings.get(name, name) in self._values

    def stack(self, name: str, kind: str = "") -> Floats:
        """A copy of the values of all layers, (L, B, ..): ``cache.stack("pattern")``."""
        asked = _full_name(name, 0, kind).split(".", 2)[2]
        layers = [self[key] for key in self._values if key.startswith("blocks.") and key.split(".", 2)[2] == asked]
        if not layers:
            raise KeyError(f"no layer's {asked!r} is in the cache")
        return np.stack(layers)

    def __repr__(self) -> str:
        return f"Cache({len(self)} values: {', '.join(list(self)[:3])}, ...)"


_IN_ATTENTION = {"q", "k", "v", "z", "pattern", "attn_scores", "result"}
_KINDS = {"a": "attn", "attn": "attn", "m": "mlp", "mlp": "mlp", "ln1": "ln1", "ln2": "ln2"}


def _full_name(name: str, layer: int, kind: str = "") -> str:
    name = {"attn": "pattern", "attn_logits": "attn_scores", "scores": "attn_scores"}.get(name, name)
    part = _KINDS.get(kind, kind) or ("attn" if name in _IN_ATTENTION else "mlp" if name in ("pre", "post") else "")
    return ".".join(filter(None, ["blocks", str(layer), part, f"hook_{name}"]))


@dataclass(frozen=True)
class Map:
    """Numbers of a model in rows and columns, such as a layer's heads."""

    name: str
    values: Floats
    """The numbers; the first axis is that of the rows."""
    rows: str = "layer"
    """What the rows are: ``layer`` or ``head``."""
    columns: str = "head"
    unit: str = ""
    """What a number is, in what unit."""
    row_labels: Sequence[str] = ()
    column_labels: Sequence[str] = ()
    """Their labels; numbers if there are none."""
    draw: Callable[[str, Map], bytes] | None = field(default=None, repr=False)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Floats:
        return np.array(self.values, dtype=dtype, copy=copy) if copy else np.asarray(self.values, dtype=dtype)

    def labels(self) -> tuple[list[str], list[str]]:
        """The labels of rows and columns."""
        values = np.atleast_2d(self.values)
        rows = list(self.row_labels) or [str(i) for i in range(values.shape[0])]
        columns = list(self.column_labels) or [str(i) for i in range(values.shape[1])]
        return rows, columns

    def top(self, count: int = 5) -> list[tuple[str, float]]:
        """The numbers farthest from 0, largest first, each with its row and column: ``("5.1", -0.31)``."""
        values = np.atleast_2d(self.values)
        rows, columns = self.labels()
        order = np.argsort(-np.abs(values), axis=None, kind="stable")[:count]
        places = (divmod(int(i), values.shape[1]) for i in order)
        return [(f"{rows[row]}.{columns[column]}", float(values[row, column])) for row, column in places]

    def to_pandas(self) -> pandas.DataFrame:
        """A table, if pandas is installed."""
        import pandas

        rows, columns = self.labels()
        index = pandas.Index(rows, name=self.rows)
        return pandas.DataFrame(np.atleast_2d(self.values), index=index, columns=pandas.Index(columns, name=self.columns))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Draws the map into a file: ``.svg``, ``.pdf`` or ``.png``."""
        if self.draw is None:
            raise ValueError("this map belongs to no model that could draw it")
        Path(path).write_bytes(self.draw(str(path), self))

    def _repr_svg_(self) -> str | None:
        return self.draw("map.svg", self).decode() if self.draw else None

    def __repr__(self) -> str:
        top = ", ".join(f"{place} {number:+.3g}" for place, number in self.top(3))
        return f"Map({self.name}, {self.rows} by {self.columns} {_shape(np.asarray(self.values))}; {top})"


class Maps(Mapping[str, Map]):
    """Several maps of one analysis, by name."""

    def __init__(self, maps: Mapping[str, Map], numbers: Mapping[str, float] | None = None) -> None:
        self._maps = dict(maps)
        self.numbers: dict[str, float] = dict(numbers or {})
        """What is one number, such as the metric of the whole run."""

    def __getitem__(self, name: str) -> Map:
        return self._maps[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._maps)

    def __len__(self) -> int:
        return len(self._maps)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._maps:
            return self._maps[name].values
        if name in self.numbers:
            return self.numbers[name]
        raise AttributeError(f"there is no {name!r}; there are {', '.join([*self._maps, *self.numbers])}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._maps, *self.numbers]

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each number of each map, if pandas is installed."""
        import pandas

        rows: list[tuple[str, str, str, float]] = []
        for name, one in self._maps.items():
            of_rows, of_columns = one.labels()
            for row, numbers in zip(of_rows, np.atleast_2d(one.values)):
                rows.extend((name, row, column, float(number)) for column, number in zip(of_columns, numbers))
        return pandas.DataFrame(rows, columns=["map", "row", "column", "value"])

    def _repr_html_(self) -> str:
        return "".join(f"<div>{one._repr_svg_() or html.escape(repr(one))}</div>" for one in self._maps.values())

    def __repr__(self) -> str:
        numbers = "".join(f", {name} {value:.4g}" for name, value in self.numbers.items())
        return f"{type(self).__name__}({', '.join(map(repr, self._maps.values()))}{numbers})"


class Scores(Maps):
    """Scores of heads, (L, H) each."""


class Effects(Maps):
    """What changing or patching each part does to a prediction."""


@dataclass(frozen=True)
class Attention:
    """The attention of a text: in a notebook, the page that shows every head, token by token."""

    text: str
    tokens: list[str]
    """The text of each token."""
    ids: list[int]
    weights: Floats
    """(L, H, T, T): how much each position attends to each."""
    interventions: list[str]
    page: Callable[[], str] = field(repr=False)
    """Makes the page, as HTML that needs no network."""
    draw: Callable[[str, Floats | None], bytes] = field(repr=False)

    def head(self, layer: int, head: int) -> Floats:
        """The weights of one head, (T, T)."""
        found: Floats = self.weights[layer, head]
        return found

    def save(self, path: str | os.PathLike[str], *, layer: int | None = None, head: int | None = None) -> None:
        """Writes the page (``.html``), or a picture of all heads or of one (``.svg``, ``.pdf``, ``.png``)."""
        if Path(path).suffix.lower() in (".html", ".htm"):
            if layer is not None or head is not None:
                raise ValueError("the page shows every head; leave layer and head out")
            Path(path).write_text(self.page(), encoding="utf-8")
            return
        if (layer is None) != (head is None):
            raise ValueError("give both layer and head, or neither for all heads")
        weights = None if layer is None or head is None else self.weights[layer, head]
        Path(path).write_bytes(self.draw(str(path), weights))

    def _repr_html_(self) -> str:
        return _native.Model.fragment(self.page(), 720)

    def __repr__(self) -> str:
        layers, heads, t = self.weights.shape[:3]
        return f"Attention({layers} layers of {heads} heads, {t} tokens: {''.join(self.tokens)!r})"


@dataclass(frozen=True)
class Comparison:
    """How far the predictions of two models lie apart over a text."""

    tokens: int
    """How many tokens were predicted."""
    perplexity: float
    """That of the model."""
    other_perplexity: float
    """That of the other one."""
    mean_kl_divergence: float
    """In nats a token: of the other's predictions from the model's."""
    top_1_agreement: float
    """How often both find the same token most probable, from 0 to 1."""
    largest_logit_difference: float


@dataclass(frozen=True)
class Continuation:
    """What the model wrote after a prompt."""

    text: str
    """Up to the end token or the first stop string."""
    ids: list[int]
    """The new tokens, including the end token."""
    stopped_at: str | None
    """The stop string that ended the text."""

    def __str__(self) -> str:
        return self.text


def _shape(values: Floats) -> str:
    return str(tuple(values.shape))
