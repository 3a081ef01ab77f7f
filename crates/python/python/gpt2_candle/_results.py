"""What the model returns."""

from __future__ import annotations

import difflib
import html
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import _native
from ._hooks import full_name, is_short
from ._residual import ResidualStream, sliced
from ._types import Floats

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas


_NO_ARRAY = "the output of a pass is no array: .logits is one, or give return_type='logits'"


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

    def __getitem__(self, place: Any) -> Floats:
        raise TypeError(_NO_ARRAY)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Floats:
        raise TypeError(_NO_ARRAY)

    def __repr__(self) -> str:
        parts = [f"logits {_shape(self.logits)}"]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4f}")
        if self.hidden_states:
            parts.append(f"{len(self.hidden_states)} hidden states {_shape(self.hidden_states[0])}")
        if self.attentions:
            parts.append(f"{len(self.attentions)} attentions {_shape(self.attentions[0])}")
        return f"Output({', '.join(parts)})"


class PointGradient(NamedTuple):
    """A point's value and the gradient of a metric there, of the same shape."""

    value: Floats
    """The value."""
    grad: Floats
    """The gradient."""


class Gradients(dict[str, PointGradient]):
    """For each point by name, its value and the gradient of a metric there."""

    def __init__(self, at: Mapping[str, PointGradient], metric: list[float]) -> None:
        super().__init__(at)
        self.metric = metric
        """The metric of each text, or the only one of a function of all."""

    def __missing__(self, name: Any) -> PointGradient:
        """The point of a short name: ``found["z", 0]``."""
        full = _full(name)
        if full not in self:
            raise KeyError(f"{full!r} is not among the points: {', '.join(self)}")
        return self[full]

    def __contains__(self, name: object) -> bool:
        return super().__contains__(_full(name))

    def get(self, name: Any, default: Any = None) -> Any:
        """The point of a name, full or short, or ``default``."""
        return self[name] if name in self else default

    def __reduce__(self) -> Any:
        return Gradients, (dict(self), self.metric)


def _full(name: Any) -> Any:
    """A short name of a point in full; any other as it is."""
    return full_name(*name) if is_short(name) else name


class Cache(ResidualStream):
    """The values of a pass at hook points, by name. Any name of a point leads to it: those of TransformerLens 2.x and 4.x, and
    its short form ``cache["pattern", 0]``.
    """

    def __init__(
        self,
        values: Mapping[str, Floats | _native.Array | _native.Pattern],
        spellings: Mapping[str, str],
        model: Any = None,
        has_batch: bool = True,
    ) -> None:
        self._model = model
        self._has_batch = has_batch
        self._values: dict[str, Floats | _native.Pattern] = {
            name: value if isinstance(value, _native.Pattern) else np.asarray(value) for name, value in values.items()
        }
        self._spellings = spellings

    def __getitem__(self, name: str | tuple[str, int] | tuple[str, int, str]) -> Floats:
        asked, called = self._called(name)
        found = self._values.get(called)
        if isinstance(found, _native.Pattern):
            found = self._values[called] = np.asarray(found.array())
        if found is None:
            raise KeyError(f"{asked!r} is not in the cache{self._instead(called)}")
        return found

    def _instead(self, called: str) -> str:
        """What to ask for instead of a value that is not here."""
        if called in self._spellings:
            return f"; run_with_cache with names={called!r} has it"
        nearest = difflib.get_close_matches(called, self._values, 1)
        known = f"did you mean {nearest[0]!r}?" if nearest else f"it has {self._some()}"
        return f": {known}"

    def _some(self) -> str:
        names = list(self._values)
        return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "") if names else "no value"

    def _called(self, name: Any) -> tuple[str, str]:
        """A name as it was asked for, and as the value is called here."""
        if isinstance(name, str):
            base = name.removesuffix("_grad")
            asked = base if base in self._spellings else f"hook_{base}"
            return name, self._spellings.get(asked, base) + name[len(base) :]
        if name[0].endswith("_grad"):
            asked, called = self._called((name[0].removesuffix("_grad"), *name[1:]))
            return f"{asked}_grad", f"{called}_grad"
        layer = name[1] + self._model_layers() if name[1] < 0 else name[1]
        asked = full_name(name[0], layer, "" if len(name) == 2 else name[2])
        return asked, self._spellings.get(asked, asked)

    def _model_layers(self) -> int:
        """How many layers the model has, of which some may not be here."""
        return 1 + max((int(name.split(".")[1]) for name in self._spellings.values() if name.startswith("blocks.")), default=0)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, (str, tuple)) and self._called(name)[1] in self._values

    def __reduce__(self) -> Any:
        return Cache, (dict(self), dict(self._spellings), None, self._has_batch)

    def reduced(self, positions: Any, without_batch: bool) -> Cache:
        """This cache with some positions alone, or without the axis of its only text."""
        values: dict[str, Any] = {}
        for name in self._values:
            value = self[name]
            base = name.removesuffix("_grad")
            # Of attention, (B, H, T, T), the positions are those of the queries; values of heads are (B, T, H, ..).
            axis = 2 if base.endswith(("hook_pattern", "hook_attn_scores")) else 1
            value = value[0] if without_batch else value
            values[name] = sliced(value, positions, axis - 1 if without_batch else axis)
        return Cache(values, self._spellings, self._model, not without_batch)

    def remove_batch_dim(self) -> Cache:
        """This cache without the axis of texts; for a single text."""
        if any(value.shape[0] != 1 for value in self.values()):
            raise ValueError("remove_batch_dim: is for the cache of one text")
        return self.reduced(None, True)

    def stack(self, name: str, kind: str = "") -> Floats:
        """A copy of the values of all layers, (L, B, ..): ``cache.stack("pattern")``."""
        asked = full_name(name, 0, kind).split(".", 2)[2]
        layers = [self[key] for key in self._values if key.startswith("blocks.") and key.split(".", 2)[2] == asked]
        if not layers:
            raise KeyError(f"no layer's {asked!r} is in the cache")
        return np.stack(layers)

    def stack_activation(self, activation_name: str, layer: int = -1, sublayer_type: str = "") -> Floats:
        """The values of the layers below ``layer``, (layers, B, ..), under TransformerLens' name for :meth:`stack`."""
        found = self.stack(activation_name, sublayer_type)
        return found if layer == -1 else found[:layer]

    def __repr__(self) -> str:
        return f"Cache({len(self)} value{'' if len(self) == 1 else 's'}: {self._some()})"


@dataclass(frozen=True)
class Map:
    """Numbers of a model's parts, such as one for each head."""

    name: str
    values: Floats
    axes: tuple[str, ...] = ("layer", "head")
    """What each axis of the numbers counts: ``layer``, ``head``, ``position``."""
    unit: str = ""
    """What a number is, in what unit."""
    draw: Callable[[str, Map], bytes] | None = field(default=None, repr=False, compare=False)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Floats:
        return np.array(self.values, dtype=dtype) if copy else np.asarray(self.values, dtype=dtype)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "draw": None}  # what draws belongs to the model

    def __getitem__(self, place: Any) -> Any:
        """The number at a place as `top` names it: ``scores["5.1"]``. Any other index is NumPy's.

        Raises:
            KeyError: for a text that names no place of this map.
        """
        if not isinstance(place, str):
            return self.values[place]
        parts = place.split(".")
        index = tuple(int(part) for part in parts if part.isascii() and part.isdigit())
        if len(index) != len(parts) or len(index) != self.values.ndim or any(i >= n for i, n in zip(index, self.values.shape)):
            shape = " by ".join(str(n) for n in self.values.shape)
            raise KeyError(f"{place!r}: expected a place as in {'.'.join('0' * self.values.ndim)!r}, by {', '.join(self.axes)}; the map is {shape}")
        return float(self.values[index])

    def top(self, count: int = 5) -> list[tuple[str, float]]:
        """The numbers farthest from 0, largest first, each with its place: ``("5.1", -0.31)`` for layer 5, head 1."""
        order = np.argsort(-np.abs(self.values), axis=None, kind="stable")[:count]
        places = (np.unravel_index(int(i), self.values.shape) for i in order)
        return [(".".join(str(int(i)) for i in place), float(self.values[place])) for place in places]

    def to_pandas(self) -> pandas.DataFrame:
        """A table, if pandas is installed: a row for each number of the first axis, a column for each of the others."""
        import pandas

        first, *others = self.axes
        flat = np.asarray(self.values).reshape(self.values.shape[0], -1)
        if len(others) > 1:
            columns: Any = pandas.MultiIndex.from_product([range(n) for n in self.values.shape[1:]], names=others)
        else:
            columns = pandas.RangeIndex(flat.shape[1], name=others[0]) if others else [self.name]
        return pandas.DataFrame(flat, index=pandas.RangeIndex(flat.shape[0], name=first), columns=columns)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Draws the map into a file, which it replaces: ``.svg``, ``.pdf`` or ``.png``.

        Raises:
            ValueError: for a map of three axes: a picture has two, so draw a part of it.
        """
        if self.draw is None:
            raise ValueError("this map belongs to no model that could draw it")
        _native.write_file(os.fspath(path), self.draw(os.fspath(path), self), True)

    def _repr_html_(self) -> str:
        if self.draw is None or self.values.ndim > 2:
            return html.escape(repr(self))
        return self.draw("map.svg", self).decode()

    def __repr__(self) -> str:
        top = ", ".join(f"{place} {number:+.3g}" for place, number in self.top(3))
        return f"Map({self.name}, {' by '.join(self.axes)} {_shape(np.asarray(self.values))}; {top})"


class Maps(Mapping[str, Map]):
    """Several maps of one analysis, by name."""

    def __init__(self, maps: Mapping[str, Map], numbers: Mapping[str, float] | None = None, view: str = "") -> None:
        self._maps = dict(maps)
        self.view = view
        """Which view of the weights the numbers are of, where there is more than one."""
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
        of_map = f"; each is a map, as in [{next(iter(self._maps))!r}].{name}" if hasattr(Map, name) else ""
        raise AttributeError(f"there is no {name!r}; there are {', '.join([*self._maps, *self.numbers])}{of_map}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._maps, *self.numbers]

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each number of each map, if pandas is installed."""
        import pandas

        rows: list[tuple[str, str, float]] = []
        for name, one in self._maps.items():
            rows.extend((name, ".".join(map(str, place)), float(number)) for place, number in np.ndenumerate(one.values))
        return pandas.DataFrame(rows, columns=["map", "place", "value"])

    def _repr_html_(self) -> str:
        return "".join(f"<div>{one._repr_html_()}</div>" for one in self._maps.values())

    def __repr__(self) -> str:
        numbers = "".join(f", {name} {value:.4g}" for name, value in self.numbers.items())
        view = f"; {self.view}" if self.view else ""
        return f"{type(self).__name__}({', '.join(map(repr, self._maps.values()))}{numbers}{view})"


class Scores(Maps):
    """Scores of heads, (L, H) each."""


class Effects(Maps):
    """What changing or patching each part does to a prediction."""


@dataclass(frozen=True)
class Picture:
    """A picture, which a notebook shows."""

    title: str
    draw: Callable[[str], bytes] = field(repr=False)
    """Makes the file of a name that ends in ``.svg``, ``.pdf`` or ``.png``."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Draws it into a file, which it replaces: ``.svg``, ``.pdf`` or ``.png``."""
        _native.write_file(os.fspath(path), self.draw(os.fspath(path)), True)

    def _repr_html_(self) -> str:
        return self.draw("picture.svg").decode()


@dataclass(frozen=True)
class _Page:
    """A page that is made already."""

    html: str

    def __call__(self) -> str:
        return self.html


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
    draw: Callable[[str, Floats | None], bytes] | None = field(repr=False)

    def __getstate__(self) -> dict[str, Any]:
        # What draws belongs to the model; the page is text.
        return {**self.__dict__, "page": _Page(self.page()), "draw": None}

    def head(self, layer: int, head: int) -> Floats:
        """The weights of one head, (T, T)."""
        found: Floats = self.weights[layer, head]
        return found

    def save(self, path: str | os.PathLike[str], *, layer: int | None = None, head: int | None = None) -> None:
        """Writes the page (``.html``), or a picture of all heads or of one (``.svg``, ``.pdf``, ``.png``)."""
        if Path(path).suffix.lower() in (".html", ".htm"):
            if layer is not None or head is not None:
                raise ValueError("the page shows every head; leave layer and head out")
            _native.write_file(os.fspath(path), self.page().encode(), True)
            return
        if (layer is None) != (head is None):
            raise ValueError("give both layer and head, or neither for all heads")
        if self.draw is None:
            raise ValueError("a picture is drawn by the model, which a pickled result does not have; the page is here: .html")
        weights = None if layer is None or head is None else self.weights[layer, head]
        _native.write_file(os.fspath(path), self.draw(os.fspath(path), weights), True)

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
    report: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False, compare=False)
    """The facts, as ``gpt2 generate --json`` prints them. Of a search with beams, ``hypotheses`` has all texts that it found, with their
    scores; with a draft, ``draft`` says how many of its guesses were right."""

    def __str__(self) -> str:
        return self.text


def _shape(values: Floats) -> str:
    return str(tuple(values.shape))
