"""Hooks, interventions, patching and edges as TransformerLens 2 computes them: a part of make_circuit_reference.py."""

import torch
from torch import Tensor

import circuit_reference.model as base
from circuit_reference.model import CASES, EAP_IG_STEPS, HEADS, LAYERS, T, metric

import hooked_transformer
from hooked_transformer import NO_PROCESSING
from transformer_lens import ActivationCache, HookedTransformer, patching


def hooked(processing: dict) -> HookedTransformer:
    model = hooked_transformer.hooked(base.load(), processing, dtype=torch.float64)
    assert model.W_E.dtype == torch.float64
    return model


# These hooks exist only behind a switch. A switch can change other hooks: q, k, v and attention inputs give ln1's hooks
# a head dimension, and attn_in is idle while q, k and v have their own inputs. So each is on only while it is needed.
SWITCHES = {
    "attn.hook_result": "set_use_attn_result",
    "hook_mlp_in": "set_use_hook_mlp_in",
    "hook_attn_in": "set_use_attn_in",
    "hook_q_input": "set_use_split_qkv_input",
    "hook_k_input": "set_use_split_qkv_input",
    "hook_v_input": "set_use_split_qkv_input",
}


def switch_of(name: str) -> str | None:
    return SWITCHES.get(name.split(".", 2)[-1])


def with_switch(model: HookedTransformer, switch: str | None, run):
    """run(), with one switch on."""
    if switch:
        getattr(model, switch)(True)
    found = run()
    if switch:
        getattr(model, switch)(False)
    return found


@torch.no_grad()
def write_hooks(model: HookedTransformer, clean: Tensor) -> None:
    logits, cache = model.run_with_cache(clean)
    values = dict(cache.items())
    for switch in sorted(set(SWITCHES.values())):
        more = with_switch(model, switch, lambda: model.run_with_cache(clean)[1])
        values |= {name: value for name, value in more.items() if switch_of(name) == switch}
    tensors = {f"2x/{name}": base.shown(name, value) for name, value in values.items()}
    change = lambda value, hook: base.ramp(value)  # what writing to a hook does
    for name in values:
        if name.startswith("blocks.1.") or not name.startswith("blocks."):
            run = lambda: model.run_with_hooks(clean, fwd_hooks=[(name, change)])
            tensors[f"ramp/{name}"] = with_switch(model, switch_of(name), run)[0, -1]
    base.write({"ids/clean": clean, "logits": logits} | tensors, "hooks.safetensors")


HOOKS = {
    "z": "attn.hook_z",
    "resid_pre": "hook_resid_pre",
    "attn_out": "hook_attn_out",
    "mlp_out": "hook_mlp_out",
    "scores": "attn.hook_attn_scores",
}


def hook_name(site: str, layer: int) -> str:
    return f"blocks.{layer}.{HOOKS[site]}"


@torch.no_grad()
def write_interventions(model: HookedTransformer, clean: Tensor, corrupt: Tensor) -> None:
    different, same = base.other_prompts()
    vector = base.steering_vector()
    cache = model.run_with_cache(corrupt)[1]
    tensors = {"ids/clean": clean, "ids/corrupt": corrupt, "ids/others by position": same, "vector": vector}
    tensors |= {f"ids/others.{i}": ids for i, ids in enumerate(different)}
    tensors["plain"] = model(clean)
    for case in CASES:
        name = hook_name(case.site, case.layer)
        source = None
        if case.kind == "patch":
            source = cache[name]
        elif case.kind == "steer":
            source = vector
        elif case.kind == "mean":
            rows = [model.run_with_cache(ids)[1][name][0, :, case.head] for ids in different]
            source = torch.cat(rows).mean(0)  # every position of every prompt weighs the same
            tensors[f"mean/{case.layer}.{case.head}"] = source
        elif case.kind == "mean by position":
            source = model.run_with_cache(same)[1][name][:, :, case.head].mean(0)
            tensors[f"mean by position/{case.layer}.{case.head}"] = source
        change = lambda value, hook, case=case, source=source: base.changed(case, value, source)
        tensors[case.key] = model.run_with_hooks(clean, fwd_hooks=[(name, change)])
    base.write(tensors, "interventions.safetensors")


def with_gradients(model: HookedTransformer, ids: Tensor, names: list[str], hooks: list = []) -> dict[str, Tensor]:
    """The gradient of the metric with respect to the activation at each hook."""
    kept: dict[str, Tensor] = {}

    def keep(value: Tensor, hook) -> None:
        value.retain_grad()
        kept[hook.name] = value

    logits = model.run_with_hooks(ids, fwd_hooks=hooks + [(name, keep) for name in names])
    metric(logits).backward()
    return {name: value.grad.detach() for name, value in kept.items()}


def attribution(model: HookedTransformer, clean: ActivationCache, corrupt: ActivationCache, ids: Tensor) -> dict:
    """(clean - corrupt) · gradient at the corrupt run, summed over channels."""
    sites = ("z", "resid_pre", "attn_out", "mlp_out")
    names = [hook_name(site, layer) for site in sites for layer in range(LAYERS)]
    grads = with_gradients(model, ids, names)
    found = {}
    for site in sites:
        layers = [
            ((clean[name] - corrupt[name]) * grads[name]).sum(-1)[0]
            for name in (hook_name(site, layer) for layer in range(LAYERS))
        ]
        stack = torch.stack(layers)
        found[f"attribution/{site}"] = stack.transpose(1, 2) if site == "z" else stack  # (L, H, T) and (L, T)
    return found


INPUTS = [f"blocks.{layer}.hook_{which}_input" for which in "qkv" for layer in range(LAYERS)]


def edge_scores(change: Tensor, grads: dict[str, Tensor]) -> Tensor:
    """(3, L, H, L, H): change of a sender's result (L, T, H, C) · gradient at a receiver's q, k or v input."""
    scores = torch.zeros(3, LAYERS, HEADS, LAYERS, HEADS)
    for i, which in enumerate("qkv"):
        for receiver in range(LAYERS):
            grad = grads[f"blocks.{receiver}.hook_{which}_input"][0]  # (T, H, C)
            scores[i, :receiver, :, receiver] = torch.einsum("ltuc,tvc->luv", change[:receiver], grad)
    return scores


def edges(model: HookedTransformer, clean: Tensor, corrupt: Tensor) -> dict[str, Tensor]:
    model.set_use_attn_result(True)
    model.set_use_split_qkv_input(True)

    def results(ids: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            cache = model.run_with_cache(ids)[1]
        return torch.stack([cache["result", layer][0] for layer in range(LAYERS)]), cache["hook_embed"]

    (result_clean, embed_clean), (result_corrupt, embed_corrupt) = results(clean), results(corrupt)
    change = result_clean - result_corrupt

    def mean_gradients(steps: range) -> dict[str, Tensor]:
        total: dict[str, Tensor] = {}
        for k in steps:
            mixed = embed_corrupt + k / EAP_IG_STEPS * (embed_clean - embed_corrupt)
            mix = lambda value, hook, mixed=mixed: mixed.clone().requires_grad_()
            for name, grad in with_gradients(model, corrupt, INPUTS, [("hook_embed", mix)]).items():
                total[name] = total.get(name, 0.0) + grad / EAP_IG_STEPS
        return total

    found = {
        "eap": edge_scores(change, with_gradients(model, corrupt, INPUTS)),
        "eap noising": edge_scores(-change, with_gradients(model, clean, INPUTS)),
        "eap-ig": edge_scores(change, mean_gradients(range(1, EAP_IG_STEPS + 1))),
        "eap-ig from 0": edge_scores(change, mean_gradients(range(EAP_IG_STEPS))),
    }
    model.set_use_attn_result(False)
    model.set_use_split_qkv_input(False)
    return found


def write_patching(model: HookedTransformer, clean: Tensor, corrupt: Tensor) -> None:
    with torch.no_grad():
        clean_logits, clean_cache = model.run_with_cache(clean)
        corrupt_logits, corrupt_cache = model.run_with_cache(corrupt)
        arguments = (model, corrupt, clean_cache, metric)
        tensors = {
            "ids/clean": clean,
            "ids/corrupt": corrupt,
            "ids/answer": torch.tensor([base.ANSWER]),
            "ids/against": torch.tensor([base.AGAINST]),
            "metric/clean": metric(clean_logits),
            "metric/corrupt": metric(corrupt_logits),
            "patch/z": patching.get_act_patch_attn_head_out_all_pos(*arguments),  # (L, H)
            "patch/z by position": patching.get_act_patch_attn_head_out_by_pos(*arguments).transpose(1, 2),
            "patch/resid_pre": patching.get_act_patch_resid_pre(*arguments),  # (L, T)
            "patch/attn_out": patching.get_act_patch_attn_out(*arguments),
            "patch/mlp_out": patching.get_act_patch_mlp_out(*arguments),
        }
    assert tensors["patch/z by position"].shape == (LAYERS, HEADS, T)
    tensors |= attribution(model, clean_cache, corrupt_cache, corrupt)
    tensors |= edges(model, clean, corrupt)
    base.write(tensors, "patching.safetensors")


def main() -> None:
    path = base.start(__doc__)
    clean, corrupt = base.prompts()
    model = hooked(NO_PROCESSING)
    write_hooks(model, clean)
    write_interventions(model, clean, corrupt)
    write_patching(model, clean, corrupt)
    versions = base.versions("transformer_lens", "transformers", "torch", "numpy", "safetensors")
    base.write_facts({"versions": versions}, path)
