"""GPT-2 in PyTorch, with the names of its checkpoints, which check_gpu.py times beside ours."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, scaled_dot_product_attention


class CausalSelfAttention(nn.Module):
    def __init__(self, c: int, n_head: int) -> None:
        super().__init__()
        self.c_attn, self.c_proj, self.n_head = nn.Linear(c, 3 * c), nn.Linear(c, c), n_head

    def forward(self, x: Tensor, past: list[Tensor] | None = None) -> Tensor:
        """`past` is empty, or holds the keys and values before x, and then x is one token."""
        b, t, c = x.shape
        packed = self.c_attn(x).view(b, t, 3, self.n_head, c // self.n_head)
        q, k, v = (part.transpose(1, 2) for part in packed.unbind(2))  # (B, H, T, D)
        if past is not None:
            k, v = (torch.cat(pair, 2) for pair in zip(past, (k, v))) if past else (k, v)  # (B, H, S, D)
            past[:] = k, v
        y = scaled_dot_product_attention(q, k, v, is_causal=t > 1)
        return self.c_proj(y.transpose(1, 2).reshape(b, t, c))


class GPT2(nn.Module):
    def __init__(self, vocab_size: int, n_positions: int, n_embd: int, n_layer: int, n_head: int) -> None:
        super().__init__()
        c, norm = n_embd, partial(nn.LayerNorm, n_embd)
        self.wte, self.wpe, self.ln_f = nn.Embedding(vocab_size, c), nn.Embedding(n_positions, c), norm()
        self.h = nn.ModuleList()
        for _ in range(n_layer):
            mlp = nn.ModuleDict({"c_fc": nn.Linear(c, 4 * c), "c_proj": nn.Linear(4 * c, c)})
            self.h.append(nn.ModuleDict(dict(ln_1=norm(), attn=CausalSelfAttention(c, n_head), ln_2=norm(), mlp=mlp)))

    def forward(self, ids: Tensor, pasts: list[list[Tensor]] | None = None) -> Tensor:
        """Logits of the last position, (B, 1, V)."""
        start = pasts[0][0].shape[2] if pasts and pasts[0] else 0
        x = self.wte(ids) + self.wpe(torch.arange(start, start + ids.shape[1], device=ids.device))  # (B, T, C)
        for block, past in zip(self.h, pasts or [None] * len(self.h)):
            x = x + block["attn"](block["ln_1"](x), past)
            x = x + block["mlp"]["c_proj"](gelu(block["mlp"]["c_fc"](block["ln_2"](x)), approximate="tanh"))
        return linear(self.ln_f(x[:, -1:]), self.wte.weight)
