#!/usr/bin/env python3
"""Write tests/data/circuits/processed.safetensors: what HookedTransformer shows of tests/data/circuits/model by default, in float64.

    python3 -m venv /tmp/tl3 && /tmp/tl3/bin/pip install torch==2.11.0 transformers==5.23.0 transformer_lens==3.9.0
    /tmp/tl3/bin/python scripts/make_processed_reference.py

By default means with layer norms folded, writing weights and the unembedding centered, and value biases folded. The file has `ids`, the
`logits`, each value that run_with_cache returns (under its name), the weights as properties (`W_Q` ..), the `differences` between
this view and the one without processing (`differences/NAME`: the largest, relative to the largest number there), and of the
cache's methods `accumulated_resid`, `decompose_resid`, `stack_head_results` and `logit_attrs`; of metrics, gradients at hook points.
"""

import argparse
import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from hooked_transformer import NO_PROCESSING, hooked
from safetensors.torch import save_file
from transformer_lens import HookedTransformer
from transformer_lens.pretrained.weight_conversions import convert_gpt2_weights
from transformers import GPT2LMHeadModel

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "data" / "circuits"
IDS = [[7, 21, 3, 40, 7, 21, 3], [11, 2, 2, 50, 33, 8, 0]]
ANSWERS, AGAINST = [40, 5], [12, 9]
WEIGHTS = ("W_E", "W_pos", "W_U", "b_U", "W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O", "W_in", "b_in", "W_out", "b_out")
POINTS = ("hook_embed", "blocks.0.attn.hook_z", "blocks.1.hook_resid_mid", "blocks.2.mlp.hook_post", "blocks.2.hook_resid_post", "ln_final.hook_scale")


def largest(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    shown = torch.isfinite(a) & torch.isfinite(b)
    return (a - b)[shown].abs().max() / b[shown].abs().max()


def processed(hf) -> HookedTransformer:
    """HookedTransformer's default processing by its own steps: load_and_process_state_dict would round all weights to f32 before."""
    model = hooked(hf, dict.fromkeys(NO_PROCESSING, True), dtype=torch.float64)
    plain = hooked(hf, dtype=torch.float64)  # what the file lacks is as in a new model
    state = plain.fill_missing_keys(convert_gpt2_weights(hf, plain.cfg))
    state = model.fold_layer_norm(state)
    state = model.center_writing_weights(state)
    state = model.fold_value_biases(model.center_unembed(state))
    model.load_state_dict(state, strict=False)
    return model


def gradients(model, metric) -> dict[str, torch.Tensor]:
    """The gradient of a metric of the logits (B, T, V) at some points, through backward hooks."""
    cache, fwd, bwd = model.get_caching_hooks(lambda name: name in POINTS, incl_bwd=True)
    with model.hooks(fwd_hooks=fwd, bwd_hooks=bwd):
        value = metric(model(torch.tensor(IDS)))
        value.backward()
    return {"value": value.detach(), **{name: cache[f"{name}_grad"] for name in POINTS}}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    hf = GPT2LMHeadModel.from_pretrained(FOLDER / "model", attn_implementation="eager").double()
    model = processed(hf)
    plain = hooked(hf, dtype=torch.float64)
    ids = torch.tensor(IDS)
    found: dict[str, torch.Tensor] = {"ids": ids}
    logits, cache = model.run_with_cache(ids)
    plain_logits, plain_cache = plain.run_with_cache(ids)
    found["logits"] = logits
    found["differences/logits"] = largest(logits, plain_logits)
    for name, value in cache.items():
        found[name] = torch.where(torch.isfinite(value), value, torch.tensor(0.0, dtype=value.dtype))
        if name in plain_cache and plain_cache[name].shape == value.shape:
            found[f"differences/{name}"] = largest(value, plain_cache[name])
    for name in WEIGHTS:
        found[name] = getattr(model, name)
        if name not in ("b_U",):
            found[f"plain/{name}"] = getattr(plain, name)
    residual, labels = cache.accumulated_resid(return_labels=True, incl_mid=True)
    found["accumulated_resid"] = residual
    found["accumulated_resid normed"] = cache.accumulated_resid(layer=2, apply_ln=True, pos_slice=-1)
    parts, names = cache.decompose_resid(return_labels=True)
    found["decompose_resid"] = parts
    found["decompose_resid normed"] = cache.decompose_resid(layer=2, mode="attn", apply_ln=True, pos_slice=-1)
    found["stack_head_results"] = cache.stack_head_results(layer=2, pos_slice=-1)
    found["stack_head_results rest"] = cache.stack_head_results(incl_remainder=True, pos_slice=-1)
    tokens, wrong = torch.tensor(ANSWERS), torch.tensor(AGAINST)
    stack = cache.decompose_resid(pos_slice=-1)
    found["logit_attrs"] = cache.logit_attrs(stack, tokens, pos_slice=-1, incorrect_tokens=wrong)
    found["logit_attrs alone"] = cache.logit_attrs(stack, tokens, pos_slice=-1)
    print(labels, names, sorted(name for name in found if "differences" in name))

    reference = plain_logits.roll(1, 0).log_softmax(-1).detach()
    rows = torch.arange(2)
    metrics = {
        "difference": lambda x: (x[rows, -1, tokens] - x[rows, -1, wrong]).mean(),
        "log_prob": lambda x: x[:, -1].log_softmax(-1)[rows, tokens].mean(),
        "probability": lambda x: x[:, -1].softmax(-1)[rows, tokens].mean(),
        "loss": lambda x: plain.loss_fn(x, ids),
        "kl": lambda x: (reference[:, -1].exp() * (reference[:, -1] - x[:, -1].log_softmax(-1))).sum(-1).mean(),
        "positions": lambda x: (x[rows, :, tokens] - x[rows, :, wrong])[:, [2, 5]].mean(),
    }
    found["reference"] = reference
    for name, metric in metrics.items():
        for point, value in gradients(plain, metric).items():
            found[f"gradients/{name}/{point}"] = value
    save_file({name: value.detach().contiguous().clone() for name, value in found.items()}, FOLDER / "processed.safetensors")
    print((FOLDER / "processed.safetensors").stat().st_size, "bytes")


if __name__ == "__main__":
    main()
