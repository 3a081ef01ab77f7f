"""Writes tests/data/muon/reference.safetensors: steps that PyTorch's own Muon takes, in f64.

    pip install torch==2.11.0 safetensors numpy
    python scripts/make_muon_reference.py

For each shape, weights (out, in) as PyTorch stores them, and the weights after each of four steps with the gradients of that step:
`OUTxIN.weight`, `OUTxIN.gradient.STEP`, `OUTxIN.after.STEP`. PyTorch rounds the matrix to bf16 before its iteration; here that call
returns the matrix as it is, so that everything is f64.
"""

from __future__ import annotations

import argparse
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / "tests" / "data" / "muon" / "reference.safetensors"
SHAPES = [(6, 14), (14, 6), (8, 8), (1, 5)]
STEPS = 4
RATES = [0.02, 0.1, 0.05, 0.01]


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    import torch
    from safetensors.torch import save_file

    torch.Tensor.bfloat16 = lambda self: self.clone()  # type: ignore[method-assign]
    torch.manual_seed(5)
    tensors = {}
    for rows, columns in SHAPES:
        name = f"{rows}x{columns}"
        weight = torch.nn.Parameter(torch.randn(rows, columns, dtype=torch.float64) * 0.3)
        tensors[f"{name}.weight"] = weight.detach().clone()
        optimizer = torch.optim.Muon([weight], lr=1.0, weight_decay=0.1, momentum=0.95)
        for step in range(STEPS):
            gradient = torch.randn(rows, columns, dtype=torch.float64) * 10.0 ** (1 - step)
            optimizer.param_groups[0]["lr"] = RATES[step]
            weight.grad = gradient
            optimizer.step()
            tensors[f"{name}.gradient.{step}"] = gradient
            tensors[f"{name}.after.{step}"] = weight.detach().clone()
    save_file(tensors, DATA)
    print(f"{DATA}: torch {torch.__version__}")


if __name__ == "__main__":
    main()
