"""Decoding with a cache of fixed size, so that a step is always the same work and can be replayed as a CUDA graph."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear, scaled_dot_product_attention

from pytorch_gpt2 import GPT2

from .budget import NotRun

TOP_K = 40  # the default of `gpt2 generate`
ROUNDINGS = 10  # by so much two orders of the same sums may differ in the logits


def pick_greedy(logits: Tensor) -> Tensor:
    """(B, 1, V) to (B, 1)."""
    return logits.argmax(-1)


def pick_sampled(logits: Tensor) -> Tensor:
    """Draws from the `TOP_K` most probable tokens, on the device: argmax of p / e with exponential e draws with
    probabilities p, as torch.multinomial does, which a graph cannot hold."""
    best, places = logits.float().topk(min(TOP_K, logits.shape[-1]))
    p = best.softmax(-1)
    drawn = (p / torch.empty_like(p).exponential_(1)).argmax(-1, keepdim=True)
    return places.gather(-1, drawn).squeeze(-1)


def hold(what: str, got: Tensor, expected: Tensor, roundings: int) -> None:
    """Raises `NotRun` unless both are the same up to so many roundings of `got`'s dtype at the largest value."""
    error = ((got.float() - expected.float()).abs().max() / expected.float().abs().max()).item()
    allowed = roundings * torch.finfo(got.dtype).eps / 2
    if not error <= allowed:  # true for NaN too
        raise NotRun(f"{what}: relative error {error:.1e}, allowed is {allowed:.1e}")


def static_step(
    model: GPT2, token: Tensor, position: Tensor, places: Tensor, caches: list[Tensor], logits: Tensor, pick: Callable
) -> None:
    """One token: reads `token` (B, 1) at `position` (1,), appends to the caches, writes `logits` and the next token."""
    b, c = token.shape[0], model.wte.weight.shape[1]
    x = model.wte(token) + model.wpe(position)  # (B, 1, C)
    bias = torch.where(places <= position, 0.0, float("-inf")).to(x.dtype)[None, None, None]  # (1, 1, 1, S)
    for block, cache in zip(model.h, caches):
        attention = block["attn"]
        packed = attention.c_attn(block["ln_1"](x)).view(b, 1, 3, attention.n_head, c // attention.n_head)
        q, k, v = (part.transpose(1, 2) for part in packed.unbind(2))  # (B, H, 1, D)
        for one, new in zip(cache, (k, v)):
            one.index_copy_(2, position, new)
        y = scaled_dot_product_attention(q, cache[0], cache[1], attn_mask=bias)
        x = x + attention.c_proj(y.transpose(1, 2).reshape(b, 1, c))
        x = x + block["mlp"]["c_proj"](gelu(block["mlp"]["c_fc"](block["ln_2"](x)), approximate="tanh"))
    logits.copy_(linear(model.ln_f(x), model.wte.weight))
    token.copy_(pick(logits))
    position.add_(1)


class StaticDecoder:
    """Steps after a prompt. All tensors stay where they are; `reset` goes back to the end of the prompt."""

    def __init__(self, model: GPT2, ids: Tensor, new_tokens: int, pick: Callable[[Tensor], Tensor]) -> None:
        self.model, self.new_tokens, self.pick = model, new_tokens, pick
        self.prompt: list[list[Tensor]] = [[] for _ in model.h]  # the eager cache
        logits = model(ids, self.prompt)
        b, self.t = ids.shape
        self.first = pick(logits)
        s = -(-(self.t + new_tokens) // 64) * 64  # aligned, as the fast kernels want the mask
        self.token, self.logits = self.first.clone(), torch.empty_like(logits)
        self.position, self.places = ids.new_zeros(1), torch.arange(s, device=ids.device)
        self.caches = []
        for k, v in self.prompt:
            _, h, _, d = k.shape
            cache = k.new_zeros(2, b, h, s, d)
            cache[0, :, :, : self.t], cache[1, :, :, : self.t] = k, v
            self.caches.append(cache)
        self.step: Callable[[], object] = lambda: None
        self.reset()

    def reset(self) -> None:
        self.token.copy_(self.first)
        self.position.fill_(self.t)

    def make_step(self, compiler: Callable | None, graph: bool) -> None:
        """Compiles the step, records it, both, or neither."""
        run = compiler(static_step) if compiler else static_step

        def once() -> None:
            run(self.model, self.token, self.position, self.places, self.caches, self.logits, self.pick)

        self.step = once
        if graph:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):  # libraries choose their kernels and get their memory outside the graph
                for _ in range(3):
                    self.reset()
                    once()
            torch.cuda.current_stream().wait_stream(side)
            recorded = torch.cuda.CUDAGraph()
            with torch.cuda.graph(recorded):
                once()
            self.step = recorded.replay
        self.reset()

    def steps(self) -> None:
        for _ in range(self.new_tokens):
            self.step()

    def check(self) -> list[Tensor]:
        """Compares each step with the eager path after the same tokens; returns the tokens."""
        self.reset()
        past, tokens = copy.deepcopy(self.prompt), [self.first.clone()]
        for _ in range(self.new_tokens):
            expected = self.model(tokens[-1], past)
            self.step()
            hold("the static cache gives other logits than the eager path", self.logits, expected, ROUNDINGS)
            if self.pick is pick_greedy:
                # In halves two tokens often have the same logit, and each path may take another of them.
                logits = expected.float()
                best, taken = logits.max(-1).values, logits.gather(-1, self.token[..., None])[..., 0]
                allowed = ROUNDINGS * torch.finfo(expected.dtype).eps / 2 * logits.abs().max()
                if not bool((best - taken <= allowed).all()):
                    raise NotRun("the static cache picks another token than the eager path")
            tokens.append(self.token.clone())
        return tokens
