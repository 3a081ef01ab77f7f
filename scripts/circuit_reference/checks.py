"""Compute what TransformerLens computed again, with nnsight and with transformers and PyTorch hooks alone: a part of
make_circuit_reference.py."""

from contextlib import contextmanager

import torch
from nnsight import NNsight
from torch import Tensor

import circuit_reference.model as base
from circuit_reference.model import CASES, CHANNELS, EAP_IG_STEPS, HEADS, LAYERS, T, Case, metric
from transformers import GPT2LMHeadModel

DIM = CHANNELS // HEADS


def split(x: Tensor) -> Tensor:
    """(1, T, C) as (1, T, H, D): the input of c_proj is z."""
    return x.view(*x.shape[:2], HEADS, DIM)


def cooler(case: Case, qkv: Tensor) -> Tensor:
    """The output of c_attn with one head's queries divided by the temperature, which divides its scores."""
    qkv = qkv.clone()
    columns = slice(case.head * DIM, (case.head + 1) * DIM)
    qkv[..., columns] = qkv[..., columns] / case.number
    return qkv


def edited(case: Case, value: Tensor, source: Tensor | None) -> Tensor:
    if case.site == "scores":
        return cooler(case, value)
    if case.site == "z":
        return base.changed(case, split(value), source).reshape(value.shape)
    return base.changed(case, value, source)


# --- transformers -------------------------------------------------------------------------------


def module_of(model: GPT2LMHeadModel, site: str, layer: int) -> tuple[torch.nn.Module, bool]:
    """Where a site is, and whether it is that module's input."""
    block = model.transformer.h[layer]
    places = {
        "z": (block.attn.c_proj, True),
        "resid_pre": (block, True),
        "attn_out": (block.attn.c_proj, False),
        "mlp_out": (block.mlp, False),
        "scores": (block.attn.c_attn, False),
    }
    return places[site]


@contextmanager
def hooked(model: GPT2LMHeadModel, edits: list):
    """edits: (site, layer, function of the activation, which returns the new one or None)."""
    handles = []
    for site, layer, edit in edits:
        module, is_input = module_of(model, site, layer)
        if is_input:

            def pre_hook(_module, inputs, edit=edit):
                new = edit(inputs[0])
                return None if new is None else (new, *inputs[1:])

            handles.append(module.register_forward_pre_hook(pre_hook))
        else:
            handles.append(module.register_forward_hook(lambda _module, _inputs, output, edit=edit: edit(output)))
    yield
    for handle in handles:
        handle.remove()


SITES = ("z", "resid_pre", "attn_out", "mlp_out")


def activations(model: GPT2LMHeadModel, ids: Tensor, grads: bool = False) -> tuple[dict, Tensor]:
    """Every site's activation, z as (1, T, H, D), and the logits."""
    found: dict = {}

    def keep(key):
        def edit(value):
            value = value.clone() if grads else value.detach()
            if grads:
                value.retain_grad()
            found[key] = value
            return value if grads else None

        return edit

    with hooked(model, [(site, layer, keep((site, layer))) for site in SITES for layer in range(LAYERS)]):
        logits = model(ids, use_cache=False).logits
    if not grads:
        found = {key: split(value) if key[0] == "z" else value for key, value in found.items()}
    return found, logits


def sources(model: GPT2LMHeadModel, stored: dict[str, Tensor]) -> dict[Case, Tensor | None]:
    """What each case writes, computed with transformers from the stored ids."""
    corrupt = activations(model, stored["ids/corrupt"])[0]
    different = [stored[f"ids/others.{i}"] for i in range(len(base.OTHER_LENGTHS))]
    rows = [activations(model, ids)[0] for ids in different]
    same = activations(model, stored["ids/others by position"])[0]
    found = {}
    for case in CASES:
        key, head = (case.site, case.layer), case.head
        found[case] = {
            "patch": lambda: corrupt[key],
            "steer": lambda: stored["vector"],
            "mean": lambda: torch.cat([row[key][0, :, head] for row in rows]).mean(0),
            "mean by position": lambda: same[key][:, :, head].mean(0),
        }.get(case.kind, lambda: None)()
    return found


@torch.no_grad()
def check_interventions(model: GPT2LMHeadModel) -> dict:
    stored = base.read("interventions.safetensors")
    clean = stored["ids/clean"]
    source = sources(model, stored)
    off_hooks, off_nnsight = {}, {}
    traced = NNsight(model)
    for case in CASES:
        written = source[case]
        with hooked(model, [(case.site, case.layer, lambda value: edited(case, value, written))]):
            logits = model(clean, use_cache=False).logits
        off_hooks[case.key] = base.largest(logits, stored[case.key])

        module, is_input = module_of(traced, case.site, case.layer)
        if is_input:
            with traced.trace(clean, use_cache=False):
                module.input = edited(case, module.input, written)
                logits = traced.lm_head.output.save()
        else:
            with traced.trace(clean, use_cache=False):
                module.output = edited(case, module.output, written)
                logits = traced.lm_head.output.save()
        off_nnsight[case.key] = base.largest(logits, stored[case.key])
    return {"transformers": off_hooks, "nnsight": off_nnsight}


# --- patching and edges -------------------------------------------------------------------------


@torch.no_grad()
def check_patching(model: GPT2LMHeadModel) -> dict[str, float]:
    stored = base.read("patching.safetensors")
    clean_values, clean_logits = activations(model, stored["ids/clean"])
    corrupt = stored["ids/corrupt"]

    def patched(site: str, layer: int, head: int | None, position: int | None) -> Tensor:
        case = Case("patch", site, layer, head, position)
        with hooked(model, [(site, layer, lambda value: edited(case, value, clean_values[site, layer]))]):
            return metric(model(corrupt, use_cache=False).logits)

    layers, heads, positions = range(LAYERS), range(HEADS), range(T)
    found = {
        "metric/clean": metric(clean_logits),
        "metric/corrupt": metric(model(corrupt, use_cache=False).logits),
        "patch/z": torch.tensor([[patched("z", l, h, None) for h in heads] for l in layers]),
        "patch/z by position": torch.tensor(
            [[[patched("z", l, h, p) for p in positions] for h in heads] for l in layers]
        ),
    }
    for site in SITES[1:]:
        found[f"patch/{site}"] = torch.tensor([[patched(site, l, None, p) for p in positions] for l in layers])
    return {key: base.largest(value, stored[key]) for key, value in found.items()}


def check_attribution(model: GPT2LMHeadModel) -> dict[str, float]:
    stored = base.read("patching.safetensors")
    clean = activations(model, stored["ids/clean"])[0]
    corrupt, logits = activations(model, stored["ids/corrupt"], grads=True)
    metric(logits).backward()
    off = {}
    for site in SITES:
        parts = []
        for layer in range(LAYERS):
            value = corrupt[site, layer]
            change = clean[site, layer].reshape(value.shape) - value.detach()
            product = change * value.grad
            parts.append(split(product).sum(-1)[0].T if site == "z" else product.sum(-1)[0])
        off[f"attribution/{site}"] = base.largest(torch.stack(parts), stored[f"attribution/{site}"])
    return off


def edge_scores(model: GPT2LMHeadModel, embeds: Tensor, change: Tensor) -> Tensor:
    """(3, L, H, L, H): the derivative of the metric with respect to a factor on each edge, at factor 0.

    A factor adds its share of a sender's `change` (L, H, T, C) to the residual stream that one of a receiver's three
    inputs reads, before its layer norm. No gradient of an activation is needed.
    """
    factors = torch.zeros(3, LAYERS, HEADS, LAYERS, HEADS, requires_grad=True)
    handles = []
    for layer, block in enumerate(model.transformer.h):
        read: list[Tensor] = []
        handles.append(block.register_forward_pre_hook(lambda _module, inputs, read=read: read.append(inputs[0])))

        def project(module, _inputs, _output, read=read, block=block, layer=layer):
            weight, bias = module.weight.view(CHANNELS, 3, HEADS, DIM), module.bias.view(3, HEADS, DIM)
            added = torch.einsum("iluh,lutc->ihtc", factors[:, :layer, :, layer], change[:layer])
            normed = block.ln_1(read[0] + added)  # (3, H, T, C)
            return (torch.einsum("ihtc,cihd->tihd", normed, weight) + bias).reshape(1, T, -1)

        handles.append(block.attn.c_attn.register_forward_hook(project))
    metric(model(inputs_embeds=embeds, use_cache=False).logits).backward()
    for handle in handles:
        handle.remove()
    return factors.grad


def check_edges(model: GPT2LMHeadModel) -> dict[str, float]:
    stored = base.read("patching.safetensors")
    ids = [stored["ids/clean"], stored["ids/corrupt"]]
    embeds = [model.transformer.wte(i).detach() for i in ids]
    results = []
    for i in ids:
        values = activations(model, i)[0]
        w_o = [block.attn.c_proj.weight.view(HEADS, DIM, CHANNELS) for block in model.transformer.h]
        results.append(torch.stack([torch.einsum("thd,hdc->htc", values["z", l][0], w_o[l]) for l in range(LAYERS)]))
    change = (results[0] - results[1]).detach()
    mixed = [embeds[1] + k / EAP_IG_STEPS * (embeds[0] - embeds[1]) for k in range(EAP_IG_STEPS + 1)]
    at = [edge_scores(model, mix, change) for mix in mixed]
    found = {
        "eap": at[0],
        "eap noising": edge_scores(model, embeds[0], -change),
        "eap-ig": torch.stack(at[1:]).mean(0),
        "eap-ig from 0": torch.stack(at[:-1]).mean(0),
    }
    return {key: base.largest(value, stored[key]) for key, value in found.items()}


# --- activations and attributions -----------------------------------------------------------------


@torch.no_grad()
def check_hooks(model: GPT2LMHeadModel) -> dict[str, float]:
    stored = base.read("hooks.safetensors")
    output = model(stored["ids/clean"], output_hidden_states=True, output_attentions=True, use_cache=False)
    values = activations(model, stored["ids/clean"])[0]
    off = {"logits": base.largest(output.logits, stored["logits"])}
    for layer in range(LAYERS):
        here = {"attn.hook_pattern": output.attentions[layer], "attn.hook_z": values["z", layer]}
        here |= {f"hook_{site}": values[site, layer] for site in SITES[1:]}
        for name, value in here.items():
            off[name] = max(off.get(name, 0.0), base.largest(value, stored[f"2x/blocks.{layer}.{name}"]))
    off["ln_final"] = base.largest(output.hidden_states[-1], stored["2x/ln_final.hook_normalized"])
    return off


@torch.no_grad()
def check_direct(model: GPT2LMHeadModel) -> float:
    """The raw shares of heads, from the checkpoint's own tensors."""
    stored = base.read("direct.safetensors")
    values, _ = activations(model, stored["ids/clean"])
    ln_f, w_u = model.transformer.ln_f, model.lm_head.weight
    final = []
    handle = ln_f.register_forward_pre_hook(lambda _module, inputs: final.append(inputs[0][0, -1]))
    model(stored["ids/clean"], use_cache=False)
    handle.remove()
    deviation = (final[0].var(unbiased=False) + ln_f.eps).sqrt()
    off = 0.0
    for layer, block in enumerate(model.transformer.h):
        w_o = block.attn.c_proj.weight.view(HEADS, DIM, CHANNELS)
        written = torch.einsum("hd,hdc->hc", values["z", layer][0, -1], w_o)
        shares = ((written - written.mean(-1, keepdim=True)) / deviation * ln_f.weight) @ w_u.T  # (H, V)
        answer, against = shares[:, base.ANSWER], shares[:, base.AGAINST]
        pairs = [("raw/answer", answer), ("raw/difference", answer - against), ("kept/difference", answer - against)]
        pairs.append(("kept/answer", answer - shares.mean(-1)))
        for key, value in pairs:
            off = max(off, base.largest(value, stored[f"{key}/heads"][layer]))
    return off


def main() -> None:
    path = base.start(__doc__)
    model = base.load()
    facts = {"interventions": check_interventions(model), "hooks": check_hooks(model), "direct": check_direct(model)}
    facts["patching"] = check_patching(model) | check_attribution(model) | check_edges(model)
    facts["versions"] = base.versions("nnsight", "transformers", "torch", "numpy", "safetensors")
    base.write_facts(facts, path)
