"""Training of dictionaries."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from . import _native
from ._base import Progress, Report
from ._dictionary import Dictionary
from ._features import texts_of
from ._model import Model
from ._notes import warn
from ._numbers import count, maybe
from ._store import INDEX, Store


@dataclass(frozen=True)
class DictionaryTraining:
    """What a run has made."""

    dictionary: Dictionary
    """The trained dictionary, as it is in its folder."""
    report: Report
    """The facts, as ``gpt2 train-features --json`` prints them: ``explained_variance``, ``l0``, ``silent``, ``steps`` and so on."""
    finished: bool
    """Whether all steps ran."""

    def __repr__(self) -> str:
        report = self.report
        return (
            f"DictionaryTraining({report['steps']} steps, explained variance {report['explained_variance']:.3f}, "
            f"L0 {report['l0']:.1f}, {report['silent']} silent)"
        )


def train_features(
    source: Store | str | os.PathLike[str] | Sequence[str],
    out: str | os.PathLike[str],
    *,
    model: Model | None = None,
    point: str | None = None,
    writes: str | None = None,
    features: int | None = None,
    k: int = 32,
    sparsity: Literal["topk", "jumprelu"] = "topk",
    epochs: int = 4,
    batch: int = 1024,
    accumulate: int = 1,
    lr: float = 4e-3,
    silent_after: int = 100_000,
    seed: int = 0,
    overwrite: bool = False,
    resume: bool = False,
    by: Literal["line", "document", "json"] | None = None,
    field: str | None = None,
    bos: bool = False,
    window: int | None = None,
    progress: Progress | None = None,
) -> DictionaryTraining:
    """Trains a sparse autoencoder (Gao et al. 2024; Rajamanoharan et al. 2024) or a transcoder (Dunefsky et al. 2024) on recorded values, or on those that a model computes
    meanwhile. The same seed gives the same files. Ctrl-C saves what has been learned, and ``resume=True`` goes on to the same files.

    Args:
        source: What :meth:`Model.record` wrote. With ``model``, a list of texts, or the path of a file or of a folder of .txt files.
        out: The folder for the dictionary, in SAELens' form.
        model: The model that reads the texts.
        point: The value to learn from; needed with ``model``, or if the store has several.
        writes: Trains a transcoder, which predicts this value from that of ``point``; needs ``sparsity="jumprelu"``.
        features: How many features; 8 for each number of a value, if there is no number.
        k: How many features fire at a token.
        sparsity: ``topk`` takes the ``k`` largest, ``jumprelu`` learns a threshold for each, so that about ``k`` fire.
        epochs: How often to go through the values.
        batch: Tokens of a batch.
        accumulate: Batches that a step adds up.
        lr: The largest learning rate.
        silent_after: After how many tokens without firing a feature is revived.
        seed: Of the first weights and the order of values.
        overwrite: Replaces a dictionary that is there.
        resume: Goes on where a stopped run was, with the same options.
        by, field: How a file of texts is cut into documents.
        bos: Puts the model's first token before each window, and learns nothing from it.
        window: Tokens of a window at most; as many as the model reads, if there is no number.
        progress: Called with ``"steps"``, how many are done, and how many there are.

    Raises:
        ValueError: for too few values, values that are not finite, or an option that does not fit them.
    """
    if model is not None and not isinstance(model, Model):
        raise TypeError(f"model: expected a Model, got {model!r}; Model.load opens one by its name")
    path, texts = (os.fspath(source.path), None) if isinstance(source, Store) else texts_of(source, "source")
    is_store = path is not None and os.path.exists(os.path.join(path, INDEX))
    if is_store and model is not None:
        raise TypeError("model: reads texts, and a store has values already; leave it out")
    if not is_store and model is None:
        raise TypeError("source: is no store; for texts, give model=, which reads them")
    options = {
        "source": path or "the texts",
        "out": os.fspath(out),
        "point": point,
        "writes": writes,
        "features": maybe(features, "features", 1),
        "k": count(k, "k", 1, 2**32 - 1),
        "sparsity": sparsity,
        "epochs": count(epochs, "epochs", 1, 2**32 - 1),
        "batch": count(batch, "batch", 2, 1 << 16),
        "accumulate": count(accumulate, "accumulate", 1, 1024),
        "lr": _above_0(lr),
        "silent_after": count(silent_after, "silent_after", 1, 2**32 - 1),
        "overwrite": bool(overwrite),
        "resume": bool(resume),
        "by": by,
        "field": field,
        "bos": bool(bos) or (model is not None and bool(model.facts["prepend_bos"])),
        "window": maybe(window, "window", 1),
    }
    request = {
        "options": json.dumps({name: value for name, value in options.items() if value is not None}),
        "texts": texts,
        "seed": count(seed, "seed"),
        "progress": progress,
    }
    found, planned, notes = _native.train_features(None if model is None else model._own, request)
    warn(notes)
    report: Report = json.loads(found)
    return DictionaryTraining(Dictionary.load(out), report, report["steps"] == planned)


def _above_0(lr: float) -> float:
    if not 0 < float(lr) < float("inf"):
        raise ValueError(f"lr is {lr}, expected a finite number above 0")
    return float(lr)
