"""Hooks as the bridge of TransformerLens 4 names and computes them: a part of make_circuit_reference.py."""

import torch
from torch import Tensor

import circuit_reference.model as base

from transformer_lens.model_bridge import TransformerBridge

NEAR = 1e-12
SWITCHES = ("set_use_attn_result", "set_use_hook_mlp_in", "set_use_split_qkv_input", "set_use_attn_in")


def bridge(switch: str | None = None) -> TransformerBridge:
    """The bridge looks nothing up online if it is given a model; the folder's config.json tells it the rest."""
    folder = str(base.FOLDER / "model")
    model = TransformerBridge.boot_transformers(folder, hf_model=base.load(), dtype=torch.float64, device="cpu")
    if switch:
        getattr(model, switch)(True)
    return model


@torch.no_grad()
def fired(model: TransformerBridge, ids: Tensor) -> dict[str, Tensor]:
    """The value at every name of `hook_dict` that fires, aliases included."""
    found: dict[str, Tensor] = {}
    for name, point in model.hook_dict.items():
        point.add_hook(lambda value, hook, name=name: found.__setitem__(name, value.detach().clone()))
    model(ids)
    return found


@torch.no_grad()
def written_to(name: str, switch: str | None, ids: Tensor) -> Tensor:
    """The logits at the last position if `ramp` changes a hook's value."""
    model = bridge(switch)
    model.hook_dict[name].add_hook(lambda value, hook: base.ramp(value))
    return model(ids)[0, -1]


def main() -> None:
    path = base.start(__doc__)
    clean, _ = base.prompts()
    plain = bridge()
    aliases = {name: point.name for name, point in plain.hook_dict.items() if name != point.name}
    values = fired(plain, clean)
    hidden = values["blocks.0.attn.hook_attn_scores"][0, 0, 0, 1].item()
    needs = {}
    for switch in SWITCHES:  # a fresh model each: the last two exclude each other
        for name, value in fired(bridge(switch), clean).items():
            if name not in values:
                values[name] = value
                needs[name] = switch
    silent = [name for name in plain.hook_dict if name not in values]
    values = {name: base.shown(name, value) for name, value in values.items()}

    stored = {k: v for k, v in base.read("hooks.safetensors").items() if not k.startswith("4x/")}
    own = {f"4x/{name}": value for name, value in values.items() if name not in aliases}
    base.write(stored | own, "hooks.safetensors")

    # Layer 1 stands for all: which names hold the value, and which of them have the same effect if written to.
    rows = []
    for key, value in stored.items():
        name = key.removeprefix("2x/")
        if key == name or name.startswith(("blocks.0.", "blocks.2.")):
            continue
        near = [n for n in values if not n.startswith(("blocks.0.", "blocks.2."))]
        same = [n for n in near if values[n].shape == value.shape and values[n].dtype == value.dtype]
        same = [n for n in same if base.largest(values[n], value) < NEAR]
        tried = {n: base.largest(written_to(n, needs.get(n), clean), stored[f"ramp/{name}"]) for n in {*same, name}}
        row = {"name": name, "shape": list(value.shape), "alias of": aliases.get(name), "needs": needs.get(name)}
        row["difference"] = base.largest(values[name], value)
        row["equal"] = sorted(same)
        row["written"] = tried[name]
        row["same effect"] = sorted(n for n, off in tried.items() if off < NEAR)
        rows.append(row)
    shapes = {name: list(value.shape) for name, value in values.items() if ".0." not in name and ".2." not in name}
    facts = {
        "versions": base.versions("transformer_lens", "transformers", "torch", "numpy"),
        "rows": rows,
        "aliases": aliases,
        "silent": silent,
        "needs": needs,
        "hidden score": hidden,
        "shapes": shapes,
        "logits": base.largest(values["unembed.hook_out"], stored["logits"]),
    }
    base.write_facts(facts, path)
