"""The values that transformers computes when heads and attention are changed: a part of make_reference.py."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import GPT2LMHeadModel


def heads_of(context: Tensor, model: GPT2LMHeadModel) -> Tensor:
    """The input of c_proj, (B, T, C), as z: (B, T, H, D), a view."""
    return context.view(*context.shape[:2], model.config.n_head, -1)


@torch.no_grad()
def with_z(model: GPT2LMHeadModel, ids: Tensor, change: dict) -> Tensor:
    """Logits after `change[layer]` has changed that layer's z (B, T, H, D) in place."""
    handles = []
    for layer, edit in change.items():

        def pre_hook(_module, inputs, edit=edit):
            context = inputs[0].clone()
            edit(heads_of(context, model))
            return (context,)

        handles.append(model.transformer.h[layer].attn.c_proj.register_forward_pre_hook(pre_hook))
    logits = model(ids, use_cache=False).logits
    for handle in handles:
        handle.remove()
    return logits


@torch.no_grad()
def z_of(model: GPT2LMHeadModel, ids: Tensor) -> list[Tensor]:
    """z of every layer, (B, T, H, D)."""
    found: dict[int, Tensor] = {}
    edits = {i: (lambda z, i=i: found.__setitem__(i, z.clone())) for i in range(model.config.n_layer)}
    with_z(model, ids, edits)
    return [found[i] for i in range(model.config.n_layer)]


@torch.no_grad()
def knocked_out(model: GPT2LMHeadModel, ids: Tensor, pairs: list) -> Tensor:
    """Logits if each (layer or None, head or None, query, key) has the score -inf."""
    t, heads = ids.shape[1], model.config.n_head
    handles = []
    for layer, block in enumerate(model.transformer.h):
        mask = torch.full((t, t), -torch.inf).triu(1).expand(1, heads, t, t).clone()  # added to the scores
        for only_layer, head, query, key in pairs:
            if only_layer in (None, layer):
                mask[:, slice(None) if head is None else head, query, key] = -torch.inf

        def pre_hook(_module, inputs, kwargs, mask=mask):
            assert "attention_mask" in kwargs
            return inputs, kwargs | {"attention_mask": mask}

        handles.append(block.attn.register_forward_pre_hook(pre_hook, with_kwargs=True))
    logits = model(ids, use_cache=False).logits
    for handle in handles:
        handle.remove()
    return logits


def zero(head: int):
    return lambda z: z[:, :, head].zero_()


def mean(head: int):
    """The mean over batch and positions."""
    return lambda z: z[:, :, head].copy_(z[:, :, head].mean((0, 1)).expand_as(z[:, :, head]))


@torch.no_grad()
def direct_logit_attribution(model: GPT2LMHeadModel, ids: Tensor, target: int) -> Tensor:
    """(L, H): what each head adds to the target's logit at the last position, with ln_f's deviation held fixed."""
    config, ln_f = model.config, model.transformer.ln_f
    found = []
    handle = ln_f.register_forward_pre_hook(lambda _module, inputs: found.append(inputs[0]))
    model(ids, use_cache=False)
    handle.remove()
    last = found[0][0, -1]
    deviation = (last.var(unbiased=False) + config.layer_norm_epsilon).sqrt()
    shares = []
    for block, z in zip(model.transformer.h, z_of(model, ids)):
        w_o = block.attn.c_proj.weight.view(config.n_head, -1, config.n_embd)
        written = torch.einsum("hd,hdc->hc", z[0, -1], w_o)
        normed = (written - written.mean(-1, keepdim=True)) / deviation * ln_f.weight
        shares.append(normed @ model.lm_head.weight[target])
    return torch.stack(shares)


@torch.no_grad()
def ablation_effects(model: GPT2LMHeadModel, ids: Tensor, target: int, ablation) -> Tensor:
    """(L, H): the change of the target's log-probability at the end if a head is ablated."""
    log_prob = lambda logits: logits[0, -1].log_softmax(-1)[target]
    plain = log_prob(model(ids, use_cache=False).logits)
    layers, heads = range(model.config.n_layer), range(model.config.n_head)
    return torch.tensor([[log_prob(with_z(model, ids, {l: ablation(h)})) - plain for h in heads] for l in layers])


def write_interventions(folder: Path, ids: Tensor, other: Tensor) -> None:
    """The effects of changing heads and attention of the folder's model on `ids`; patches use z from `other`."""
    model = GPT2LMHeadModel.from_pretrained(folder, attn_implementation="eager").eval()
    target = 17
    other_z = z_of(model, other)
    tensors = {
        "input_ids": ids,
        "other_ids": other,
        "plain": model(ids, use_cache=False).logits,
        "zero": with_z(model, ids, {0: zero(1), 1: zero(2)}),
        "mean": with_z(model, ids, {0: mean(2), 1: mean(0)}),
        "scale": with_z(model, ids, {0: lambda z: z[:, :, 1].mul_(0.5), 1: lambda z: z[:, :, 0].mul_(-2.0)}),
        "patch": with_z(model, ids, {0: lambda z: z[:, :, 2].copy_(other_z[0][:, :, 2])}),
        "knock_out": knocked_out(model, ids, [(None, None, 7, 4), (None, None, 8, 0), (1, 2, 5, 5), (0, None, 3, 1)]),
        "direct_logit_attribution": direct_logit_attribution(model, ids[:1], target),
        "zero_effects": ablation_effects(model, ids[:1], target, zero),
        "mean_effects": ablation_effects(model, ids[:1], target, mean),
    }
    save_file({k: v.detach().clone().contiguous() for k, v in tensors.items()}, folder / "interventions.safetensors")
