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

    def __repr__(self) -> str:
        loss = f", loss {self.losses[0]:.3f} -> {self.losses[-1]:.3f}" if self.losses else ""
        held = f", validation {self.validation[-1][1]:.3f}" if self.validation else ""
        return f"Training({len(self.losses)} steps{loss}{held})"


def train(
    data: str | Iterable[str | Mapping[str, str]],
    *,
    model: Model | None = None,
    lora: LoRA | int | None = None,
    steps: int = 1000,
    batch: int = 8,
    accumulate: int = 1,
    window: int | None = None,
    lr: float = 1e-3,
    warmup: int = 100,
    weight_decay: float = 0.1,
    clip: float = 1.0,
    dropout: float | None = None,
    repeat_fraction: float = 0.0,
    recompute: bool = False,
    train_dtype: Literal["f32", "bf16"] = "f32",
    eval_every: int = 100,
    val_fraction: float = 0.1,
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
            completion is learned.
        model: The model to start from, which stays as it is; ``None`` for a new one with a new vocabulary.
        lora: Trains an adapter with these settings, or of this rank, and leaves the model's weights as they are.
        steps: Steps of the optimizer (AdamW).
        batch: Texts in a batch.
        accumulate: Batches whose gradients are summed for a step.
        window: Tokens of a text; as many as the model reads, if there is no number.
        lr: The highest learning rate, after ``warmup`` steps; a cosine then brings it down to a tenth.
        warmup: Steps of linear warm-up.
        weight_decay: Of matrices and embeddings.
        clip: The largest norm of all gradients together; 0 is off.
        dropout: On embeddings, attention weights and residuals; the model's own rates, if there is no number.
        repeat_fraction: The part of the texts that are random tokens repeated instead, which teach heads induction.
        recompute: Runs each block again in the backward pass: less memory, more time, the same numbers.
        train_dtype: ``"bf16"`` rounds the factors of products with weights, forward and backward, on processors with instructions for
            it; weights, sums and all else stay in f32.
        eval_every: Steps between validations.
        val_fraction: The part of the data that is held back for them.
        seed: Of initial weights, order and dropout.
        callback: Called after each step with its number, its loss, and the validation's loss where there is one. ``False`` stops the
            run. So does Ctrl-C, which raises KeyboardInterrupt.
        vocab_size, n_positions, n_embd, n_layer, n_head: The size of a new model: 1024, 256, 128, 4 and 4.

    Raises:
        ValueError: for too little data, or an option without a meaning.
    """
    text, examples = (data, []) if isinstance(data, str) else (None, [_example(one) for one in data])
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
        "steps": count(steps, "steps", 1, 2**32 - 1),
        "batch": count(batch, "batch", 1, 2**16 - 1),
        "accumulate": count(accumulate, "accumulate", 1, 2**16 - 1),
        "window": maybe(window, "window", 1),
        "lr": _finite(lr, "lr"),
        "warmup": count(warmup, "warmup", 0, 2**32 - 1),
        "weight_decay": _finite(weight_decay, "weight_decay"),
        "clip": _finite(clip, "clip"),
        "dropout": None if dropout is None else _finite(dropout, "dropout"),
        "repeat_fraction": _finite(repeat_fraction, "repeat_fraction"),
        "recompute": bool(recompute),
        "train_dtype": train_dtype,
        "eval_every": count(eval_every, "eval_every", 1, 2**32 - 1),
        "val_fraction": _finite(val_fraction, "val_fraction"),
    }
    native, losses, validation, finished = _native.Model.train(
        model._own if model is not None else None,
        {
            "options": json.dumps({name: value for name, value in options.items() if value is not None}),
            "text": text,
            "examples": examples,
            "seed": count(seed, "seed"),
            "callback": callback,
        },
    )
    return Training(Model(native), losses, validation, finished)


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
