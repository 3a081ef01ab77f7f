#!/usr/bin/env python3
"""Write what PyTorch's attention gives for the features of other models than GPT-2 to tests/data/attention.

    pip install -r scripts/requirements.txt
    python scripts/make_attention_reference.py

Shared keys, windows and masks by scaled_dot_product_attention; soft cap, ALiBi, sinks and log-sums by flex_attention, which has
no gradient on a CPU, so their gradients come from the same formula in plain operations, held to flex_attention's result here.
gpt-oss's attention is transformers' own.
Everything is seeded, in f64 where PyTorch allows it, and stored in f32.
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "data" / "attention"

# (name, B, H, key heads, T, S, D, Dv, left, right, soft cap, ALiBi, added)
CASES = [
    ("grouped", 2, 6, 2, 37, 37, 12, 12, None, 0, None, False, False),
    ("single_key_head", 1, 5, 1, 3, 41, 8, 8, None, 0, None, False, False),
    ("full", 2, 3, 3, 50, 29, 12, 20, None, None, None, False, False),
    ("sliding", 1, 4, 2, 70, 90, 8, 8, 15, 0, None, False, False),
    ("both_sides", 1, 2, 2, 60, 60, 8, 8, 9, 4, None, False, False),
    ("added", 2, 4, 2, 30, 45, 8, 8, None, None, None, False, True),
    ("softcap", 1, 4, 2, 33, 33, 8, 8, None, 0, 1.5, False, False),
    ("alibi", 1, 4, 4, 33, 48, 8, 8, None, 0, None, True, False),
    ("softcap_alibi_sliding", 1, 6, 3, 65, 65, 8, 8, 20, 0, 2.0, True, False),
]


def visible(t: int, s: int, left: int | None, right: int | None) -> Tensor:
    """Which keys each query sees: (T, S)."""
    ahead = torch.arange(s)[None] - (torch.arange(t)[:, None] + s - t)
    sees = torch.ones(t, s, dtype=torch.bool)
    if left is not None:
        sees &= ahead >= -left
    if right is not None:
        sees &= ahead <= right
    return sees


def by_flex_attention(q: Tensor, k: Tensor, v: Tensor, softcap: float | None, slopes: Tensor | None, sees: Tensor) -> Tensor:
    t, s = sees.shape

    def score_mod(score, b, h, i, j):
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if slopes is not None:
            score = score - slopes[h] * (i + s - t - j).abs()
        return torch.where(sees[i, j], score, float("-inf"))

    return flex_attention(q, k, v, score_mod=score_mod, enable_gqa=True)


def by_formula(q: Tensor, k: Tensor, v: Tensor, softcap: float | None, slopes: Tensor | None, sees: Tensor) -> Tensor:
    t, s = sees.shape
    group = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).mT / q.shape[-1] ** 0.5
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if slopes is not None:
        distance = (torch.arange(t)[:, None] + s - t - torch.arange(s)[None]).abs()
        scores = scores - slopes[:, None, None] * distance
    return scores.masked_fill(~sees, float("-inf")).softmax(-1) @ v.repeat_interleave(group, 1)


def write(case: tuple) -> None:
    name, b, h, key_heads, t, s, d, dv, left, right, softcap, alibi, with_added = case
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64).float().double()
    q, k, v, grad = draw(b, h, t, d), draw(b, key_heads, s, d), draw(b, key_heads, s, dv), draw(b, h, t, dv)
    stored = {"q": q, "k": k, "v": v, "grad": grad}
    for x in (q, k, v):
        x.requires_grad_()
    sees = visible(t, s, left, right)
    slopes = torch.tensor([2.0 ** -(head + 1) for head in range(h)], dtype=torch.float64) if alibi else None
    if softcap is None and not alibi:
        mask = sees
        if with_added:
            stored["added"] = mask = draw(b, h, t, s)
        context = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    else:
        context = by_formula(q, k, v, softcap, slopes, sees)
        flex = by_flex_attention(q.detach(), k.detach(), v.detach(), softcap, slopes, sees)
        worst = (flex - context).abs().max().item()
        assert worst < 1e-10, f"{name}: flex_attention differs by {worst}"
    context.backward(grad)
    if slopes is not None:
        stored["slopes"] = slopes
    stored |= {"context": context, "dq": q.grad, "dk": k.grad, "dv": v.grad}
    settings = {"left": left, "right": right, "softcap": softcap}
    metadata = {key: str(value) for key, value in settings.items() if value is not None}
    tensors = {key: x.detach().float().contiguous() for key, x in stored.items()}
    save_file(tensors, FOLDER / f"{name}.safetensors", metadata)


def write_extras() -> None:
    """Sinks, log-sums and what is added, all with gradients: the sinks as in transformers' GptOssAttention."""
    b, h, key_heads, t, s, d, left, right = 2, 4, 2, 30, 37, 8, 12, 0
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64).float().double()
    inputs = {"q": draw(b, h, t, d), "k": draw(b, key_heads, s, d), "v": draw(b, key_heads, s, d)}
    inputs |= {"added": draw(1, h, t, s), "sinks": draw(h)}
    grad, lse_grad = draw(b, h, t, d), draw(b, h, t)
    q, k, v, added, sinks = (x.requires_grad_() for x in inputs.values())
    sees = visible(t, s, left, right)
    group = h // key_heads
    scores = q @ k.repeat_interleave(group, 1).mT / d**0.5 + added
    scores = scores.masked_fill(~sees, float("-inf"))
    scores = torch.cat([scores, sinks.reshape(1, h, 1, 1).expand(b, h, t, 1)], -1)
    lse = scores.logsumexp(-1)
    context = scores.softmax(-1)[..., :-1] @ v.repeat_interleave(group, 1)

    def score_mod(score, b, h, i, j):
        return torch.where(sees[i, j], score + added[0, h, i, j], float("-inf"))

    with torch.no_grad():
        qkv = [x.detach() for x in (q, k, v)]
        flex, flex_lse = flex_attention(*qkv, score_mod=score_mod, enable_gqa=True, return_lse=True)
        flex_lse_with_sinks = torch.logaddexp(flex_lse, sinks[:, None])
        flex = flex * (flex_lse - flex_lse_with_sinks).exp()[..., None]
        worst = max((flex - context).abs().max().item(), (flex_lse_with_sinks - lse).abs().max().item())
    assert worst < 1e-6, f"extras: flex_attention differs by {worst}"
    ((context * grad).sum() + (lse * lse_grad).sum()).backward()
    stored = inputs | {"grad": grad, "lse_grad": lse_grad, "context": context, "lse": lse}
    stored |= {f"d{name}": x.grad for name, x in inputs.items()}
    tensors = {key: x.detach().float().contiguous() for key, x in stored.items()}
    save_file(tensors, FOLDER / "extras.safetensors", {"left": str(left), "right": str(right)})


def write_gpt_oss() -> None:
    """Two layers of transformers' GptOssAttention, one with a window and one without, on the same hidden states."""
    from transformers import GptOssConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention, GptOssRotaryEmbedding

    rope = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
    rope |= {"original_max_position_embeddings": 4096, "rope_theta": 150000.0}
    config = GptOssConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_hidden_layers=2, sliding_window=7,
        max_position_embeddings=131072, rope_parameters=rope, layer_types=["sliding_attention", "full_attention"],
        attention_bias=True, attn_implementation="eager",
    )  # fmt: skip
    b, t = 2, 23
    x = torch.randn(b, t, config.hidden_size)
    tensors = {"x": x}
    tables = GptOssRotaryEmbedding(config)(x, torch.arange(t)[None])
    for n in range(config.num_hidden_layers):
        layer = GptOssAttention(config, n)
        for parameter in layer.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        sees = visible(t, t, None if layer.sliding_window is None else layer.sliding_window - 1, 0)
        mask = torch.zeros(t, t).masked_fill(~sees, float("-inf"))
        with torch.no_grad():
            tensors[f"layers.{n}.out"], _ = layer(x, tables, mask[None, None])
        tensors |= {f"layers.{n}.self_attn.{name}": value for name, value in layer.state_dict().items()}
    save_file({name: x.contiguous() for name, x in tensors.items()}, FOLDER / "gpt_oss.safetensors")


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.manual_seed(20)
    torch.set_num_threads(1)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        write(case)
    write_extras()
    write_gpt_oss()


if __name__ == "__main__":
    main()
