#!/usr/bin/env python3
"""TransformerLens' main demo with both packages on the same weights: lines of code side by side, and how far the results lie apart.

    scripts/transformerlens_demo.py --model FOLDER --lens /venv/bin/python

FOLDER is a GPT-2 as transformers writes it; random weights do. The other Python has transformer_lens 2.18; this one has gpt2_candle on its PYTHONPATH
(scripts/python.sh builds it). Both compute in f64.
"""

from __future__ import annotations

import argparse
import inspect
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from hooked_transformer import hooked

LAYER, HEAD, ANSWER, AGAINST = 0, 3, 11, 12


# TransformerLens' side: what its demo writes, with its helpers by name.


def lens_loss(model: Any, tokens: Any) -> Any:
    return model(tokens, return_type="loss")


def lens_pattern(model: Any, tokens: Any) -> Any:
    logits, cache = model.run_with_cache(tokens, remove_batch_dim=True)
    return cache["pattern", LAYER, "attn"]


def lens_ablation(model: Any, tokens: Any) -> Any:
    def head_ablation_hook(value, hook):
        value[:, :, HEAD, :] = 0.0
        return value

    return model.run_with_hooks(tokens, return_type="loss", fwd_hooks=[(f"blocks.{LAYER}.attn.hook_v", head_ablation_hook)])


def lens_patching(model: Any, clean: Any, corrupted: Any) -> Any:
    import functools

    import torch

    _, clean_cache = model.run_with_cache(clean)

    def residual_stream_patching_hook(resid_pre, hook, position):
        resid_pre[:, position, :] = clean_cache[hook.name][:, position, :]
        return resid_pre

    found = torch.zeros((model.cfg.n_layers, clean.shape[1]), dtype=torch.float64)
    for layer in range(model.cfg.n_layers):
        for position in range(clean.shape[1]):
            hook = functools.partial(residual_stream_patching_hook, position=position)
            logits = model.run_with_hooks(corrupted, fwd_hooks=[(f"blocks.{layer}.hook_resid_pre", hook)])
            found[layer, position] = logits[0, -1, ANSWER] - logits[0, -1, AGAINST]
    return found


def lens_induction(model: Any, repeated: Any) -> Any:
    import torch

    found = torch.zeros((model.cfg.n_layers, model.cfg.n_heads), dtype=torch.float64)

    def induction_score_hook(pattern, hook):
        stripe = pattern.diagonal(dim1=-2, dim2=-1, offset=1 - repeated.shape[1] // 2)
        found[hook.layer(), :] = stripe.mean(dim=(0, -1))

    model.run_with_hooks(repeated, return_type=None, fwd_hooks=[(lambda name: name.endswith("pattern"), induction_score_hook)])
    return found


# The same with gpt2_candle.


def ours_loss(model: Any, tokens: Any) -> Any:
    return model(tokens, loss=True).loss


def ours_pattern(model: Any, tokens: Any) -> Any:
    logits, cache = model.run_with_cache(tokens)
    return cache["pattern", LAYER, "attn"][0]


def ours_ablation(model: Any, tokens: Any) -> Any:
    def head_ablation_hook(value, hook):
        value[:, :, HEAD, :] = 0.0
        return value

    return model(tokens, loss=True, fwd_hooks=[(f"blocks.{LAYER}.attn.hook_v", head_ablation_hook)]).loss


def ours_patching(model: Any, clean: Any, corrupted: Any) -> Any:
    return model.patching(clean[0], corrupted[0], ANSWER, AGAINST, parts="streams").streams


def ours_induction(model: Any, repeated: Any) -> Any:
    found = np.zeros((model.config["n_layer"], model.config["n_head"]))

    def induction_score_hook(pattern, hook):
        stripe = np.diagonal(pattern, axis1=-2, axis2=-1, offset=1 - len(repeated[0]) // 2)
        found[hook.layer] = stripe.mean(axis=(0, -1))

    model.run_with_hooks(repeated, fwd_hooks=[(lambda name: name.endswith("pattern"), induction_score_hook)])
    return found


STEPS = {
    "loss": (lens_loss, ours_loss),
    "attention pattern": (lens_pattern, ours_pattern),
    "ablate a head": (lens_ablation, ours_ablation),
    "patch the residual stream": (lens_patching, ours_patching),
    "induction heads": (lens_induction, ours_induction),
}


def inputs(vocabulary: int) -> dict[str, list[list[list[int]]]]:
    """The ids that each step gets."""
    rng = np.random.default_rng(0)
    text = rng.integers(0, vocabulary - 1, (1, 14)).tolist()
    corrupted = [text[0].copy()]
    corrupted[0][4] = (corrupted[0][4] + 1) % (vocabulary - 1)
    half = rng.integers(0, vocabulary - 1, (2, 25))
    repeated = np.concatenate([half, half], axis=1).tolist()
    return {name: [text, corrupted] if name.startswith("patch") else [repeated if name.startswith("induction") else text] for name in STEPS}


def as_lens(model: str, out: str) -> None:
    import torch
    from transformers import GPT2LMHeadModel

    lens = hooked(GPT2LMHeadModel.from_pretrained(model).double(), dtype=torch.float64)
    found = {}
    with torch.no_grad():
        for name, given in inputs(lens.cfg.d_vocab).items():
            found[name] = np.asarray(STEPS[name][0](lens, *(torch.tensor(ids) for ids in given)))
    np.savez(out, **found)


def lines(function: Any) -> int:
    """The lines of a step's body."""
    return sum(bool(line.strip()) for line in inspect.getsource(function).splitlines()[1:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, metavar="FOLDER", help="a GPT-2 as transformers writes it")
    parser.add_argument("--lens", default=sys.executable, metavar="PYTHON", help="a Python with transformer_lens 2.18")
    parser.add_argument("--as-lens", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_lens:
        as_lens(options.model, options.as_lens)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "lens.npz")
        subprocess.run([options.lens, __file__, "--model", options.model, "--as-lens", out], check=True)
        theirs = dict(np.load(out))
    from gpt2_candle import Model

    model = Model.load(options.model, dtype="f64")
    vocabulary = json.loads((Path(options.model) / "config.json").read_text())["vocab_size"]
    print("step                        lines: TransformerLens  gpt2_candle   largest difference")
    far = 0.0
    for name, given in inputs(vocabulary).items():
        lens, ours = STEPS[name]
        apart = float(np.abs(np.asarray(ours(model, *given)) - theirs[name]).max())
        far = max(far, apart)
        print(f"{name:27} {lines(lens):22}  {lines(ours):11}   {apart:.1e}")
    return 0 if far < 1e-9 else 1


if __name__ == "__main__":
    sys.exit(main())
