"""The loss of pytorch_gpt2.py's GPT-2 in training: with dropout where GPT-2 has it."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, gelu, linear, scaled_dot_product_attention

from pytorch_gpt2 import GPT2

DROPOUT = 0.1  # embd_pdrop, attn_pdrop and resid_pdrop of GPT-2's config


class Training(nn.Module):
    def __init__(self, model: GPT2, p: float = DROPOUT) -> None:
        super().__init__()
        self.model, self.p = model, p

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(self.logits(ids).flatten(0, 1), targets.flatten())

    def logits(self, ids: Tensor) -> Tensor:
        """Of all positions, (B, T, V)."""
        model, (b, t) = self.model, ids.shape
        x = dropout(model.wte(ids) + model.wpe(torch.arange(t, device=ids.device)), self.p)  # (B, T, C)
        c = x.shape[-1]
        for block in model.h:
            attention = block["attn"]
            packed = attention.c_attn(block["ln_1"](x)).view(b, t, 3, attention.n_head, c // attention.n_head)
            q, k, v = (part.transpose(1, 2) for part in packed.unbind(2))  # (B, H, T, D)
            y = scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.p)
            x = x + dropout(attention.c_proj(y.transpose(1, 2).reshape(b, t, c)), self.p)
            hidden = gelu(block["mlp"]["c_fc"](block["ln_2"](x)), approximate="tanh")
            x = x + dropout(block["mlp"]["c_proj"](hidden), self.p)
        return linear(model.ln_f(x), model.wte.weight)
