"""Training: a new model, a model to fine-tune, or an adapter."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from . import _native
from ._model import Model
from ._numbers import count, maybe


@dataclass(frozen=True)
class LoRA:
    """The settings of a new adapter (Hu et al. 2021). Names and defaults are PEFT's."""

    r: int = 8
    """The rank of each update."""
    alpha: float = 8.0
    """Updates are multiplied by ``alpha / r``."""
    dropout: float = 0.0
    """The probability of dropping a number of a layer's input on the way through its update."""
    targets: Sequence[str] = ("c_attn",)
    """The layers that get an update, by the ends of their names: ``attn.c_proj``, ``mlp.c_fc``."""
    rslora: bool = False
    """Multiplies by ``alpha / sqrt(r)`` instead."""


@dataclass(frozen=True)
class Training:
    """What a run has made."""

    model: Model
    """The trained model: :meth:`Model.save` or :meth:`Model.save_adapter` writes it."""
    losses: list[float]
    """The mean loss of each step, in nats a token."""
    validation: list[tuple[int, float]]
    """Steps, and the mean loss on what was held back."""
    finished: bool
    """Whether all steps ran."""
    samples: list[tuple[int, list[str]]]
    """Steps, and the texts that the model wrote after them."""
    bytes_per_token: float | None
    """The bytes of text that a validation token has on average; none without a tokenizer."""

    @property
    def bits_per_byte(self) -> list[tuple[int, float]]:
        """The validation losses in bits a byte, which do not depend on how the text is split into tokens."""
        if self.bytes_per_token is None:
            return []
        return [(step, loss / math.log(2) / self.bytes_per_token) for step, loss in self.validation]

    def __repr__(self) -> str:
        loss = f", loss {self.losses[0]:.3f} -> {self.losses[-1]:.3f}" if self.losses else ""
        held = f", validation {self.validation[-1][1]:.3f}" if self.validation else ""
        return f"Training({len(self.losses)} steps{loss}{held})"


def train(
    data: str | Iterable[str | Mapping[str, str]] | Sequence[int],
    *,
    model: Model | None = None,
    lora: LoRA | int | None = None,
    val_text: str | Sequence[int] | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    batch: int = 8,
    accumulate: int = 1,
    window: int | None = None,
    optimizer: Literal["adamw", "muon"] = "adamw",
    lr: float | None = None,
    muon_lr: float | None = None,
    schedule: Literal["cosine", "linear", "trapezoid"] = "cosine",
    warmup: int | None = None,
    weight_decay: float = 0.1,
    clip: float = 1.0,
    dropout: float | None = None,
    repeat_fraction: float = 0.0,
    recompute: bool = False,
    train_dtype: Literal["f32", "bf16"] = "f32",
    eval_every: int = 100,
    val_fraction: float = 0.1,
    num_samples: int = 0,
    sample_prompt: str | None = None,
    sample_tokens: int = 64,
    seed: int = 0,
    callback: Callable[[int, float, float | None], Any] | None = None,
    vocab_size: int | None = None,
    n_positions: int | None = None,
    n_embd: int | None = None,
    n_layer: int | None = None,
    n_head: int | None = None,
) -> Training:
    """Trains a new GPT-2, fine-tunes one, or trains an adapter on one. The same seed gives the same weights.

    Args:
        data: One text; or several, each learned by itself up to the end of text; or ``{"prompt": .., "completion": ..}``, of which the
            completion is learned; or token ids, with which the model needs no tokenizer.
        model: The model to start from, which stays as it is; ``None`` for a new one with a new vocabulary.
        lora: Trains an adapter with these settings, or of this rank, and leaves the model's weights as they are.
        val_text: A text to validate on, or its ids, instead of the end of ``data``.
        steps: Steps of the optimizer; 1000, if there is neither this number nor epochs.
        epochs: Passes over the data, instead of steps.
        batch: Texts in a batch.
        accumulate: Batches whose gradients are summed for a step.
        window: Tokens of a text; without a number, as many as a new model reads, and at most 256 for one that learns further.
        optimizer: Of the blocks' matrices: ``"adamw"``, or ``"muon"``, which leaves AdamW embeddings, norms and biases.
        lr: The highest learning rate, after ``warmup`` steps; 1e-3, and 1e-4 for a model that learns further without ``lora``, if there
            is no number.
        muon_lr: The highest learning rate of the matrices that Muon steps; 0.02, if there is no number.
        schedule: Both rates after the warm-up: a cosine down to a tenth, a line down to 0, or constant and over the last fifth down to 0.
        warmup: Steps of linear warm-up; 100, or a tenth of the steps where that is fewer, if there is no number.
        weight_decay: Of matrices and embeddings.
        clip: The largest norm of all gradients together; 0 is off.
        dropout: On embeddings, attention weights and residuals; the model's own rates, if there is no number.
        repeat_fraction: The part of the texts that are random tokens repeated instead, which teach heads induction.
        recompute: Runs each block again in the backward pass: less memory, more time, the same numbers.
        train_dtype: ``"bf16"`` rounds the factors of products with weights, forward and backward, on processors with instructions for
            it; weights, sums and all else stay in f32.
        eval_every: Steps between validations.
        val_fraction: The part of the data that is held back for them.
        num_samples: How many texts the model writes after each validation.
        sample_prompt: Their beginning; that of the validation data, if there is none.
        sample_tokens: The tokens that follow it.
        seed: Of initial weights, order, dropout and samples.
        callback: Called after each step with its number, its loss, and the validation's loss where there is one. ``False`` stops the
            run. So does Ctrl-C, which raises KeyboardInterrupt.
        vocab_size, n_positions, n_embd, n_layer, n_head: The size of a new model: 1024, 256, 128, 4 and 4.

    Raises:
        ValueError: for too little data, or an option without a meaning.
    """
    text, ids, examples = _lessons(data)
    val = (val_text, None) if isinstance(val_text, str) else (None, _ids(val_text, "val_text"))
    if (val[0] is not None and text is None) or (val[1] is not None and ids is None):
        raise TypeError("val_text: expected a text beside a text, or token ids beside token ids")
    rank = LoRA(r=count(lora, "lora", 1)) if isinstance(lora, int) and not isinstance(lora, bool) else lora
    if rank is not None and not isinstance(rank, LoRA):
        raise TypeError(f"lora: expected LoRA(..) or a rank, got {lora!r}")
    if rank is not None and model is None:
        raise TypeError("lora: an adapter is trained on a model; give model=")
    if model is not None and not isinstance(model, Model):
        raise TypeError(f"model: expected a Model, got {model!r}; Model.load opens one by its name")
    size = {"vocab_size": vocab_size, "n_positions": n_positions, "n_embd": n_embd, "n_layer": n_layer, "n_head": n_head}
    given = [name for name, number in size.items() if number is not None]
    if model is not None and given:
        raise TypeError(f"{given[0]}: is the size of a new model; leave it out, or leave model= out")
    options: dict[str, Any] = {
        **{name: maybe(number, name, 1) for name, number in size.items()},
        "lora": None if rank is None else count(rank.r, "r", 1),
        "lora_alpha": None if rank is None else _finite(rank.alpha, "alpha"),
        "lora_dropout": None if rank is None else _finite(rank.dropout, "dropout"),
        "lora_target": None if rank is None else list(rank.targets),
        "rslora": None if rank is None else bool(rank.rslora),
        "steps": None if steps is None else count(steps, "steps", 1, 2**32 - 1),
        "epochs": None if epochs is None else _finite(epochs, "epochs"),
        "batch": count(batch, "batch", 1, 2**16 - 1),
        "accumulate": count(accumulate, "accumulate", 1, 2**16 - 1),
        "window": maybe(window, "window", 1),
        "optimizer": _one_of(optimizer, "optimizer", ("adamw", "muon")),
        "lr": None if lr is None else _finite(lr, "lr"),
        "muon_lr": None if muon_lr is None else _finite(muon_lr, "muon_lr"),
        "schedule": _one_of(schedule, "schedule", ("cosine", "linear", "trapezoid")),
        "warmup": None if warmup is None else count(warmup, "warmup", 0, 2**32 - 1),
        "weight_decay": _finite(weight_decay, "weight_decay"),
        "clip": _finite(clip, "clip"),
        "dropout": None if dropout is None else _finite(dropout, "dropout"),
        "repeat_fraction": _finite(repeat_fraction, "repeat_fraction"),
        "recompute": bool(recompute),
        "train_dtype": train_dtype,
        "eval_every": count(eval_every, "eval_every", 1, 2**32 - 1),
        "val_fraction": _finite(val_fraction, "val_fraction"),
        "num_samples": count(num_samples, "num_samples"),
        "sample_prompt": sample_prompt,
        "sample_tokens": count(sample_tokens, "sample_tokens", 1),
    }
    native, losses, validation, finished, samples, bytes_per_token = _native.Model.train(
        model._own if model is not None else None,
        {
            "options": json.dumps({name: value for name, value in options.items() if value is not None}),
            "text": text,
            "ids": ids,
            "examples": examples,
            "val_text": val[0],
            "val_ids": val[1],
            "seed": count(seed, "seed"),
            "callback": callback,
        },
    )
    return Training(Model(native), losses, validation, finished, samples, bytes_per_token)


def known_text(name: str = "shakespeare") -> str:
    """A text in the public domain to train on: parts of Shakespeare's plays, 1.1 MB.

    Args:
        name: ``"shakespeare"``.
    """
    return _native.known_text(name)


def _one_of(name: str, what: str, names: Sequence[str]) -> str:
    if name not in names:
        raise ValueError(f"{what} is {name!r}, expected one of {', '.join(names)}")
    return name


def _ids(values: Any, what: str) -> list[int] | None:
    return None if values is None else [count(one, what, 0, 2**32 - 1) for one in values]


def _lessons(data: Any) -> tuple[str | None, list[int] | None, list[tuple[str, str]]]:
    if isinstance(data, str):
        return data, None, []
    found = list(data)
    if found and not isinstance(found[0], (str, Mapping)) and not isinstance(found[0], bytes):
        return None, _ids(found, "data"), []
    return None, None, [_example(one) for one in found]


def _finite(number: Any, what: str) -> float:
    found = float(number)
    if not math.isfinite(found):
        raise ValueError(f"{what} is {number}, expected a finite number")
    return found


def _example(one: Any) -> tuple[str, str]:
    if isinstance(one, str):
        return "", one
    if isinstance(one, Mapping):
        prompt, completion = (one.get(name) for name in ("prompt", "completion"))  # pyright: ignore[reportUnknownVariableType]
        if isinstance(prompt, str) and isinstance(completion, str):
            if not completion:
                raise ValueError("an example has an empty completion, so there is nothing to learn")
            return prompt, completion
    raise TypeError(f'expected a text or {{"prompt": .., "completion": ..}}, got {one!r}')
