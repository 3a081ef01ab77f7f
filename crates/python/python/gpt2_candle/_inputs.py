"""What callers give, in the form that the native half takes."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from . import _native
from ._dictionary import Dictionary
from ._hooks import refuse_hooks
from ._notes import warn
from ._numbers import array_of
from ._types import HeadName, HookFunction, KvDType, Names, Text, Texts


class HasEdges(Protocol):
    """What holds a circuit, such as :class:`Circuit`."""

    @property
    def edges(self) -> Sequence[tuple[str, str]]:
        """Pairs of a writer and a reader."""
        ...


class Changes(TypedDict, total=False):
    """Interventions: what changes while the model runs. The command has options of the same names.

    A head is ``"layer.head"`` or ``(layer, head)``, both counted from 0, and ``"0.*"`` is every head of layer 0.
    """

    prepend_bos: bool
    """Whether the model's first token stands before each text that is given as a string; ids stay as they are. Without it, as the
    model was loaded: by default it does not, where TransformerLens prepends it."""
    ablate: HeadName | Sequence[HeadName]
    """Heads whose outputs become 0."""
    mean_ablate: HeadName | Sequence[HeadName]
    """Heads whose outputs become their mean over the text, or over the texts of ``mean_of``."""
    mean_of: Sequence[str] | Sequence[Sequence[int]]
    """The texts over which means are taken. If all are as long as the text, each position has a mean of its own."""
    scale: Mapping[HeadName, float] | Mapping[str, float] | Mapping[tuple[int, int], float]
    """Heads and the factors on their outputs."""
    attention_temperature: Mapping[HeadName, float] | Mapping[str, float] | Mapping[tuple[int, int], float]
    """Heads and the temperatures, above 0, that divide their scores before the softmax."""
    block: str | Sequence[str]
    """Pairs of positions: ``"7:4"`` stops position 7 from attending to 4; ``"3.2/7:4"`` in layer 3, head 2 alone."""
    patch: HeadName | Sequence[HeadName]
    """Places that get their values of a run over ``from_prompt``: ``"5.1"`` a head, ``"5"`` the residual stream before block 5,
    ``"5.attn"`` and ``"5.mlp"`` what its halves add. ``"5.1@3"`` patches position 3 alone."""
    from_prompt: Text
    """The text that patched values come from."""
    add: Mapping[int | str, ArrayLike]
    """Layers, or ``"layer@position"``, and the vectors (C) to add to the residual stream before their blocks."""
    circuit: str | os.PathLike[str] | Sequence[tuple[str, str]] | HasEdges
    """Runs only these edges: a :class:`Circuit`, a file that ``gpt2 discover`` wrote, or pairs of a writer and a reader, such as
    ``("0.1", "2.3.q")``. Other edges carry the value of a run over ``from_prompt``, the mean over the texts of ``mean_of``, or nothing."""
    dictionary: str | os.PathLike[str] | Dictionary
    """The sparse autoencoder or transcoder whose features are changed: a :class:`Dictionary`, a folder, or ``owner/name/FOLDER`` on the
    Hub."""
    ablate_feature: int | str | Sequence[int | str]
    """Features whose share is taken out of the value that the dictionary reads: ``7``, or ``"7@3"`` at position 3 alone."""
    scale_feature: Mapping[int | str, float]
    """Features and the factors on their activations."""
    set_feature: Mapping[int | str, float]
    """Features and the activations that they get, whether they fire or not."""


class Options(Changes, total=False):
    """What :meth:`Model.generate` and :meth:`Model.stream` take besides the prompt."""

    max_new_tokens: int | None
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    repetition_penalty: float
    greedy: bool
    beams: int | None
    length_penalty: float
    early_stopping: bool
    seed: int
    stop: str | Sequence[str] | None
    kv: KvDType | None
    draft: str | os.PathLike[str] | None
    batch: int | None
    cuda_graph: bool
    fwd_hooks: Iterable[tuple[Names, HookFunction]]
    progress: Callable[[str, int, int | None], None] | None


_ON_HEADS = {"ablate": "ablate", "mean_ablate": "mean-ablate", "scale": "scale", "attention_temperature": "attention-temperature"}


def ids_of(model: _native.Model, text: Text, what: str = "the text", *, prepend_bos: bool | None = None) -> list[int]:
    """The tokens of one text, which stand behind the model's first token if ``prepend_bos`` says so, or else if the model does."""
    if isinstance(text, str):
        ids, note = model.encode_prompt(text, None if prepend_bos is None else bool(prepend_bos))
        if note is not None:
            warn([note])
        if not ids:
            raise ValueError(f"{what} is empty: give at least one token")
        return ids
    if not hasattr(text, "__iter__"):
        raise TypeError(f"{what}: expected text or token ids, got {text!r}")
    if hasattr(text, "tolist"):  # an array or a tensor, with an axis of texts or without
        rows = np.asarray(text)
        if rows.ndim == 0:
            raise TypeError(f"{what}: expected text or token ids, got {text!r}")
        text = (rows[0] if rows.ndim == 2 and len(rows) == 1 else rows).tolist()
    ids = _integers(text, what)
    if not ids:
        raise ValueError(f"{what} is empty: give at least one token")
    return ids


def rows_of(model: _native.Model, texts: Texts, *, prepend_bos: bool | None = None) -> tuple[list[list[int]], bool]:
    """The tokens of one text or several, and whether it was one."""
    if isinstance(texts, str):
        return [ids_of(model, texts, prepend_bos=prepend_bos)], True
    if hasattr(texts, "tolist"):  # an array or a tensor
        texts = np.asarray(texts).tolist()
    if not isinstance(texts, Iterable):
        raise TypeError(f"expected text or token ids, got {texts!r}")
    several: list[Any] = list(texts)
    if not several:
        raise ValueError("there is no text: give a string, ids, or a list of either")
    if not any(isinstance(one, str) or hasattr(one, "__iter__") for one in several):
        return [_integers(several, "the text")], True
    return [ids_of(model, one, f"text {i}", prepend_bos=prepend_bos) for i, one in enumerate(several)], False


def _integers(ids: Iterable[Any], what: str) -> list[int]:
    found: list[int] = []
    one: Any
    for one in ids:
        if isinstance(one, bool) or not isinstance(one, (int, np.integer)):
            several = "; give one text" if type(one) in (str, list, tuple) else ""
            raise TypeError(f"{what}: expected a string or token ids (integers), got {type(one).__name__} {one!r}{several}")
        found.append(int(one))  # pyright: ignore[reportUnknownArgumentType]
        if not 0 <= found[-1] < 2**32:
            raise ValueError(f"{what}: there is no token {one}")
    return found


def listed(value: Any) -> list[Any]:
    """What a list, a tuple or an array holds; of all else, nothing."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return list(value) if isinstance(value, (list, tuple)) else []  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def is_several(answers: Any) -> bool:
    """Whether these are several answers: a string and an array of one number are one."""
    return not isinstance(answers, str) and hasattr(answers, "__iter__") and getattr(answers, "ndim", None) != 0


def all_answers(answers: Any) -> list[Any]:
    """One answer or several, as a list."""
    if is_several(answers):
        return list(answers)
    return [answers.item() if hasattr(answers, "item") else answers]


def refuse_one_each(answers: Any, texts: int, what: str, remedy: str) -> None:
    """Refuses a list of as many answers as there are texts: it stands for all answers of every text, and reads as one answer for each.
    The ``remedy`` says how to give one for each."""
    if texts > 1 and len(listed(answers)) == texts:
        raise ValueError(f"{what}: is {answers!r} one answer for each of the {texts} texts, or several for every text? For one each, {remedy}")


def changes_of(model: _native.Model, given: Mapping[str, Any], *, runs_hooks: bool = False) -> dict[str, Any]:
    """Interventions for the native half, of a call that runs hooks or does not."""
    if not runs_hooks:
        refuse_hooks(model)
    unknown = sorted(set(given) - set(Changes.__annotations__))
    if unknown:
        known = list(Changes.__annotations__)
        nearest = difflib.get_close_matches(unknown[0], known)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"interventions are {', '.join(known)}"
        raise TypeError(f"there is no option or intervention {unknown[0]!r}; {hint}")
    heads: list[tuple[str, str]] = []
    for name, kind in _ON_HEADS.items():
        value: Any = given.get(name, ())
        if name in ("ablate", "mean_ablate"):
            heads.extend((kind, text) for text in _heads(name, value))
        else:
            numbers = _mapping(value or {}, f'{name}: expected a mapping of heads to numbers, such as {{"3.2": 0.5}}')
            heads.extend((kind, f"{head_name(head, name)}={float(number)!r}") for head, number in numbers.items())
    add = _mapping(given.get("add", {}), "add: expected a mapping of layers to vectors, such as {5: vector}")
    means = given.get("mean_of")
    means = [means] if isinstance(means, str) else means
    circuit: Any = given.get("circuit")
    if isinstance(circuit, Mapping):
        raise TypeError("circuit: expected a Circuit, a file or edges; Circuit.of(report) is that of a report of discover")
    circuit = getattr(circuit, "edges", circuit)
    if means is not None and not given.get("mean_ablate") and circuit is None:
        raise TypeError("mean_of: says over which texts mean_ablate and circuit take their means; give one of them too")
    prompt = given.get("from_prompt")
    if prompt is not None and not given.get("patch") and circuit is None:
        raise TypeError("from_prompt: is the text that patch and circuit take values from; give one of them too")
    bos = given.get("prepend_bos")
    is_file = isinstance(circuit, (str, os.PathLike))
    dictionary = given.get("dictionary")
    return {
        "heads": heads,
        "block": _texts("block", given.get("block", ())),
        "patch": _heads("patch", given.get("patch", ())),
        "from_prompt": None if prompt is None else ids_of(model, prompt, "from_prompt", prepend_bos=bos),
        "mean_of": None if means is None else [ids_of(model, one, f"mean_of, text {i}", prepend_bos=bos) for i, one in enumerate(means)],
        "add": [(str(place), array_of(np.asarray(vector), f"add {place}", dtype="float32")) for place, vector in add.items()],
        "circuit": os.fspath(circuit) if is_file else None,
        "edges": None if circuit is None or is_file else [edge_text(edge) for edge in circuit],
        "dictionary": None if dictionary is None else _dictionary(dictionary),
        "features": _features(given),
    }


def _dictionary(given: Any) -> str | _native.Dictionary:
    """A dictionary that is in memory, or its name."""
    own: Any = getattr(given, "_own", None)
    if isinstance(own, _native.Dictionary):
        return own
    if not isinstance(given, (str, os.PathLike)):
        raise TypeError(f"dictionary: expected a Dictionary or its name, got {given!r}")
    name: str = os.fspath(given)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return name


def _features(given: Mapping[str, Any]) -> list[tuple[str, str, float]]:
    """Changed features: which, how, and the number."""
    ablated: Any = given.get("ablate_feature", ())
    several: list[Any] = [ablated] if isinstance(ablated, (str, int)) or not hasattr(ablated, "__iter__") else list(ablated)
    features = [(str(one), "ablate", 0.0) for one in several]
    for kind in ("scale", "set"):
        numbers = _mapping(given.get(f"{kind}_feature", {}), f"{kind}_feature: expected a mapping of features to numbers, such as {{7: 0.5}}")
        features.extend((str(one), kind, float(number)) for one, number in numbers.items())
    return features


def _mapping(value: Any, expected: str) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(expected)
    return dict(value)  # pyright: ignore[reportUnknownArgumentType]


def head_name(head: Any, what: str = "head") -> str:
    """A head, ``"5.1"``, ``(5, 1)`` or ``"L5H1"``, as text."""
    pair = listed(head)
    if len(pair) == 2 and all(isinstance(one, (int, np.integer)) and not isinstance(one, bool) for one in pair):
        return f"{pair[0]}.{pair[1]}"
    if not isinstance(head, str):
        raise TypeError(f"{what}: expected a head such as '0.3' or (0, 3), got {head!r}")
    label = re.fullmatch(r"L(\d+)H(\d+)", head)
    return f"{label[1]}.{label[2]}" if label else head


def edge_text(edge: Any, what: str = "circuit") -> str:
    """An edge, a pair of a writer and a reader, as text."""
    ends = listed(edge)
    if len(ends) != 2:
        raise TypeError(f"{what}: expected pairs of a writer and a reader, such as ('0.3', '1.0.k'), got {edge!r}")
    return f"{head_name(ends[0], 'writer')}->{ends[1]}"


def _heads(name: str, value: Any) -> list[str]:
    if isinstance(value, Mapping):
        raise TypeError(f"{name}: expected heads such as '0.3' or (0, 3), or a list of them, got a mapping")
    several: list[Any] = listed(value) or ([value] if isinstance(value, str) or not hasattr(value, "__iter__") else list(value))
    # A layer by itself is a place to patch, so that of numbers in a list nobody could tell what they are.
    pair: list[Any] = listed(value) if name != "patch" or type(value) is tuple else []
    is_one = len(pair) == 2 and all(isinstance(one, (int, np.integer)) for one in pair)
    return [head_name(one, name) for one in ([several] if is_one else several)]


def _texts(name: str, value: Any) -> list[str]:
    several: list[Any] = [value] if isinstance(value, str) or not hasattr(value, "__iter__") else list(value)
    for one in several:
        if not isinstance(one, str):
            raise TypeError(f"{name}: expected text such as {'7:4' if name == 'block' else '0.3'!r}, got {one!r}")
    return several
