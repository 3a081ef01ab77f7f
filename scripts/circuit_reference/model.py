"""The model, prompts and interventions behind tests/data/circuits: shared by the other files of this folder.

It runs with any transformers from 4.57 on, because TransformerLens 2 needs an older one than the other scripts.
"""

import argparse
import json
import os
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GPT2LMHeadModel

from reference.models import build_model, save_checkpoint

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "data" / "circuits"
SHAPE = dict(vocab_size=53, n_positions=128, n_embd=24, n_layer=3, n_head=3)
LAYERS, HEADS, CHANNELS, VOCAB = SHAPE["n_layer"], SHAPE["n_head"], SHAPE["n_embd"], SHAPE["vocab_size"]
BOS = VOCAB - 1
T = 12
CHANGED = (2, 5, 9)  # where `corrupt` differs from `clean`: positions 0 and 1 agree in every activation
ANSWER, AGAINST = 18, 39  # the largest logits at the end of `clean` and of `corrupt`
OTHER_LENGTHS = (5, 9, 12, 16, 7)
STEER_SCALE = 1.7
EAP_IG_STEPS = 5
HIDDEN_SCORE = -1e30  # what the files hold where attention is masked


def start(what: str) -> str:
    """One thread and float64 everywhere, so that a second run writes the same bytes. Returns the file for the facts."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("facts", metavar="FACTS.json", help="the file to write what was found to, for the README")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True)
    return given.facts


def write_model() -> None:
    torch.set_default_dtype(torch.float32)
    save_checkpoint(build_model(seed=69, **SHAPE), FOLDER / "model")
    torch.set_default_dtype(torch.float64)


def load() -> GPT2LMHeadModel:
    model = GPT2LMHeadModel.from_pretrained(FOLDER / "model", dtype=torch.float64, attn_implementation="eager")
    assert model.dtype == torch.float64
    return model.eval()


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def prompt(seed: int, length: int) -> Tensor:
    """BOS and random other tokens, (1, length)."""
    ids = torch.randint(BOS, (1, length), generator=generator(seed))
    ids[:, 0] = BOS
    return ids


def prompts() -> tuple[Tensor, Tensor]:
    """`clean` and `corrupt`, (1, T)."""
    clean, corrupt = prompt(1, T), prompt(1, T)
    for position in CHANGED:
        corrupt[0, position] = (clean[0, position] + 11 + position) % BOS
    return clean, corrupt


def other_prompts() -> tuple[list[Tensor], Tensor]:
    """Five prompts of different lengths, and five of length T as one batch (5, T)."""
    different = [prompt(10 + i, length) for i, length in enumerate(OTHER_LENGTHS)]
    return different, torch.cat([prompt(20 + i, T) for i in range(5)])


def steering_vector() -> Tensor:
    return torch.randn(CHANNELS, generator=generator(30), dtype=torch.float64)


def metric(logits: Tensor) -> Tensor:
    """The logit difference at the last position of the only row."""
    return logits[0, -1, ANSWER] - logits[0, -1, AGAINST]


@dataclass(frozen=True)
class Case:
    """One intervention on the run of `clean`. `site` is z, resid_pre, attn_out, mlp_out or scores."""

    kind: str
    site: str
    layer: int
    head: int | None = None
    position: int | None = None  # None: all positions
    number: float | None = None

    @property
    def key(self) -> str:
        place = str(self.layer) + ("" if self.head is None else f".{self.head}")
        place += "" if self.position is None else f"@{self.position}"
        number = "" if self.number is None else f" {self.number}"
        return f"{self.kind} {self.site} {place}{number}"


CASES = [
    Case("patch", "z", 1, 2, 5),
    Case("patch", "z", 0, 0, 2),
    Case("patch", "z", 2, 1, 11),
    Case("patch", "z", 1, 2),
    Case("patch", "z", 0, 1),
    Case("patch", "z", 2, 0),
    Case("patch", "resid_pre", 1, None, 5),
    Case("patch", "resid_pre", 2, None, 11),
    Case("patch", "resid_pre", 1),
    Case("patch", "resid_pre", 0, None, 9),
    Case("patch", "attn_out", 1, None, 6),
    Case("patch", "attn_out", 0),
    Case("patch", "mlp_out", 1, None, 5),
    Case("patch", "mlp_out", 2),
    Case("zero", "z", 1, 0),
    Case("mean", "z", 1, 0),
    Case("mean", "z", 0, 2),
    Case("mean", "z", 2, 2, 7),
    Case("mean by position", "z", 1, 0),
    Case("mean by position", "z", 0, 2),
    Case("steer", "resid_pre", 1, None, None, STEER_SCALE),
    Case("steer", "resid_pre", 2, None, 6, STEER_SCALE),
    Case("steer", "resid_pre", 0, None, 3, STEER_SCALE),
    Case("temperature", "scores", 1, 1, None, 0.5),
    Case("temperature", "scores", 0, 2, None, 3.0),
    Case("temperature", "scores", 2, 0, None, 3.0),
]


def changed(case: Case, value: Tensor, source: Tensor | None) -> Tensor:
    """The activation `value` after the intervention; z is (1, T, H, D), scores (1, H, T, T), the rest (1, T, C)."""
    value = value.clone()
    at = slice(None) if case.position is None else case.position
    if case.site == "scores":
        value[:, case.head] = value[:, case.head] / case.number
    elif case.kind == "steer":
        value[:, at] = value[:, at] + case.number * source
    elif case.kind == "zero":
        value[:, at, case.head] = 0.0
    elif case.kind == "mean":
        value[:, at, case.head] = source  # (D): the same at every position
    elif case.kind == "mean by position":
        value[:, :, case.head] = source  # (T, D)
    elif case.site == "z":
        value[:, at, case.head] = source[:, at, case.head]
    else:
        value[:, at] = source[:, at]
    return value


def ramp(value: Tensor) -> Tensor:
    """What the runs behind `ramp/...` do to a hook: factors from 0.5 to 1.5 along its last axis (one entry: 0.5)."""
    return value * torch.linspace(0.5, 1.5, value.shape[-1])


def write(tensors: dict[str, Tensor], name: str) -> None:
    """float64 and int64 only; clones, because safetensors refuses two names for one storage."""
    for key, tensor in tensors.items():
        assert tensor.dtype in (torch.float64, torch.int64), (key, tensor.dtype)
        assert tensor.isfinite().all(), key
    save_file({k: v.detach().clone().contiguous() for k, v in tensors.items()}, FOLDER / name)


def read(name: str) -> dict[str, Tensor]:
    return load_file(FOLDER / name)


def shown(name: str, value: Tensor) -> Tensor:
    """Scores with -1e30 where attention is masked; anything else as it is."""
    return value.masked_fill(value < HIDDEN_SCORE, HIDDEN_SCORE) if name.endswith("scores") else value


def versions(*packages: str) -> dict[str, str]:
    return {name: version(name) for name in packages}


def write_facts(facts: dict, path: str) -> None:
    """What a stage has to tell the README."""
    Path(path).write_text(json.dumps(facts))


def largest(a: Tensor, b: Tensor) -> float:
    """The largest absolute difference."""
    assert a.shape == b.shape, (a.shape, b.shape)
    return (a - b).abs().max().item()
