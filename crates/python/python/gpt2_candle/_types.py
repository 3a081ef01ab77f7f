"""The types of arguments and results."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
"""An array of floats, in the model's precision."""


class LayerIndex(int):
    """A layer's number. Calling it gives it, too, since TransformerLens writes ``hook.layer()``."""

    def __call__(self) -> int:
        return int(self)


@dataclass(frozen=True)
class Hook:
    """What a hook learns about the value that it gets."""

    name: str
    """The point's name, as in TransformerLens: ``"blocks.3.attn.hook_z"``."""
    layer: LayerIndex | None
    """The layer, counted from 0; ``None`` outside the blocks."""


Ids = Union[Sequence[int], NDArray[np.integer[Any]]]
Text = Union[str, Ids]
"""One text: a string or token ids."""
HeadName = Union[str, "tuple[int, int]"]
"""A head: ``"5.1"``, ``(5, 1)`` or ``"L5H1"``, layer and number, both counted from 0."""
Paths = Union[str, "os.PathLike[str]", Sequence["str | os.PathLike[str]"]]
"""The path of a file, or of several."""
Texts = Union[Text, Sequence[str], Sequence[Sequence[int]]]
"""One text or several."""
PositionSlice = Union[int, slice, "tuple[int, int]", Sequence[int], None]
"""Positions: one, which loses its axis, a slice, a start and an end, or a list of them."""
Answers = Union[str, int, Sequence[Union[str, int]]]
"""A token as text or as its id, or several: a logit difference takes their mean logit, a probability that of any."""
AnswersOfEach = Union[Answers, Sequence[Sequence[Union[str, int]]]]
"""The same answers for every text, or a list of lists: one list for each text."""
ShortName = Union["tuple[str, int]", "tuple[str, int, str]"]
"""A hook point by its short form, ``("z", 0)``, with the layer counted from 0, or below 0 from the end."""
Names = Union[str, ShortName, Sequence[Union[str, ShortName]], Callable[[str], bool], None]
"""Hook points: a name, one with ``blocks.*.`` for every layer, the start of names up to a dot, a short form, several, a function that
says which, or the usual ones."""
HookFunction = Callable[[Floats, Hook], Any]
MetricName = Literal["logit-difference", "log-prob", "logit", "probability", "probability-difference", "loss", "kl"]
"""``logit-difference`` of ``answer`` and ``against``; ``log-prob`` or ``logit`` of ``answer``; ``probability``, that any token of ``answer``
comes next; ``probability-difference``, that less the same of ``against`` (Hanna et al. 2023); ``loss``, the mean surprise of the text's
tokens; ``kl``, the divergence from another run's predictions."""
PairMetricName = Literal["logit-difference", "log-prob", "probability", "probability-difference", "loss", "kl"]
"""The metrics of pairs of texts: ``loss`` is that of the clean text's tokens, ``kl`` the divergence from the clean run."""
MetricFunction = Callable[..., "tuple[Any, Any]"]
"""A function of logits (B, T, V) that returns its value and its gradient, of their shape. :func:`torch_metric` makes one in torch. Over
``pairs`` it may have a second parameter: the pair that it measures."""
DType = Literal["f32", "f16", "bf16", "f64"]
KvDType = Literal["f32", "f16", "bf16", "q8_0"]
Parts = Literal["heads", "heads_by_position", "streams", "attention", "attention_by_position", "mlps", "mlps_by_position"]
