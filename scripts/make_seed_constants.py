#!/usr/bin/env python3
"""Write the random parameters behind the seed documents' printed results to tests/data/seeds.

    pip install -r scripts/requirements.txt
    python scripts/make_seed_constants.py

The documents are not part of this repository; tests/lessons holds their numbers. They print results of
layers that PyTorch's generator filled. This script draws the same numbers and stores them under the names of
a PyTorch state dict, so that a layer of `gpt2_lessons` loads them like any checkpoint. If a document builds
something without printing a result, PyTorch's own result and gradients are stored under `NAME.expected.*`.
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

DATA = Path(__file__).resolve().parent.parent / "tests" / "data" / "seeds"
PROJECTIONS = ("W_query", "W_key", "W_value")


def linear_layers(n_in: int, n_out: int, bias: bool) -> nn.ModuleDict:
    """The three projections, drawn in the order in which all documents create them."""
    return nn.ModuleDict({name: nn.Linear(n_in, n_out, bias=bias) for name in PROJECTIONS})


def project(layers: nn.ModuleDict, x: Tensor, n_head: int = 1) -> list[Tensor]:
    """q, k and v of x (B, T, d_in), each (B, H, T, D)."""
    return [layers[name](x).unflatten(-1, (n_head, -1)).transpose(1, 2) for name in PROJECTIONS]


def merge(heads: Tensor) -> Tensor:
    return heads.transpose(1, 2).flatten(2)  # (B, H, T, D) -> (B, T, H·D)


def named(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def printed_results() -> dict[str, Tensor]:
    """Parameters of the results that document 001 prints: three dimensions in, two or one out."""
    torch.manual_seed(123)
    tensors = named("v1", {name: torch.rand(3, 2) for name in PROJECTIONS})
    torch.manual_seed(789)
    tensors |= named("v2", linear_layers(3, 2, bias=False).state_dict())
    for name, d_out in (("wrapper", 2), ("wrapper_of_1", 1)):
        torch.manual_seed(123)
        heads = nn.ModuleList(linear_layers(3, d_out, bias=False) for _ in range(2))
        tensors |= named(f"{name}.heads", heads.state_dict())
    torch.manual_seed(123)
    split = linear_layers(3, 2, bias=False)
    split["out_proj"] = nn.Linear(2, 2)
    return tensors | named("split", split.state_dict())


def document_004() -> dict[str, Tensor]:
    """Projections with a bias, as the document's classes have by default, and each class's result."""
    torch.manual_seed(4)
    layers = linear_layers(3, 4, bias=True)
    layers["out_proj"] = nn.Linear(4, 4)
    x = torch.randn(2, 5, 3)
    everything, past, heads = (
        merge(scaled_dot_product_attention(*project(layers, x, n_head), is_causal=causal))
        for n_head, causal in ((1, False), (1, True), (2, True))
    )
    split = layers["out_proj"](heads)
    split.square().sum().backward()
    gradients = named("grad", {name: parameter.grad for name, parameter in layers.named_parameters()})
    results = {"self": everything, "causal": past, "split": split} | gradients
    return named("biased", layers.state_dict() | {"x": x}) | named("biased.expected", results)


def document_000() -> dict[str, Tensor]:
    """[4, 12, 6] through 3 heads; its one fused projection is a Linear, stored (out, in)."""
    torch.manual_seed(0)
    layers = nn.ModuleDict({"c_attn": nn.Linear(6, 18), "c_proj": nn.Linear(6, 6)})
    x = torch.randn(4, 12, 6)
    q, k, v = (part.unflatten(-1, (3, 2)).transpose(1, 2) for part in layers["c_attn"](x).chunk(3, dim=-1))
    hidden = torch.ones(12, 12, dtype=torch.bool).triu(1)
    weights = (q @ k.mT / 2**0.5).masked_fill(hidden, -torch.inf).softmax(-1)  # (B, H, T, T)
    results = {"weights": weights, "output": layers["c_proj"](merge(weights @ v))}
    return named("fused", layers.state_dict() | {"x": x}) | named("fused.expected", results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=DATA, help="folder to write to (default: tests/data/seeds)")
    out = parser.parse_args().out

    torch.set_num_threads(1)  # the order of a sum must not depend on the machine
    tensors = printed_results() | document_004() | document_000()
    out.mkdir(parents=True, exist_ok=True)
    file = out / "parameters.safetensors"
    save_file({name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}, file)
    print(f"{file}: {len(tensors)} tensors, {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
