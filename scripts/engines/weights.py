"""The random weights that every engine reads."""

import json
from pathlib import Path

import numpy
from safetensors.numpy import load_file, save_file


def write(folder: Path, shape: dict) -> None:
    """A checkpoint of GPT-2 with seeded random weights, under the names of transformers.

    A matrix has deviation 1.4 / sqrt(fan in), so that scores spread by about 2 and attention is far from uniform. Biases and
    layer norms are not trivial either.
    """
    random = numpy.random.default_rng(0)
    c = shape["n_embd"]

    def matrix(rows: int, columns: int, fan_in: int):
        return random.standard_normal((rows, columns), dtype=numpy.float32) * numpy.float32(1.4 / fan_in**0.5)

    def vector(size: int, middle: float):
        return (middle + 0.3 * random.standard_normal(size)).astype(numpy.float32)

    tensors = {"wte.weight": matrix(shape["vocab_size"], c, c), "wpe.weight": matrix(shape["n_positions"], c, c)}
    norms = ["ln_f", *(f"h.{layer}.{name}" for layer in range(shape["n_layer"]) for name in ("ln_1", "ln_2"))]
    for name in norms:
        tensors |= {f"{name}.weight": vector(c, 1.0), f"{name}.bias": vector(c, 0.0)}
    for layer in range(shape["n_layer"]):
        sizes = {"attn.c_attn": (c, 3 * c), "attn.c_proj": (c, c), "mlp.c_fc": (c, 4 * c), "mlp.c_proj": (4 * c, c)}
        for name, (fan_in, out) in sizes.items():
            tensors[f"h.{layer}.{name}.weight"] = matrix(fan_in, out, fan_in)  # (in, out), as Conv1D
            tensors[f"h.{layer}.{name}.bias"] = vector(out, 0.0)

    folder.mkdir(parents=True)
    last = shape["vocab_size"] - 1
    config = shape | {"activation_function": "gelu_new", "bos_token_id": last, "eos_token_id": last}
    config |= {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
    (folder / "config.json").write_text(json.dumps(config))
    named = {f"transformer.{name}": tensor for name, tensor in tensors.items()}
    save_file(named, folder / "model.safetensors", metadata={"format": "pt"})


def read(folder: Path) -> tuple[dict, dict]:
    """The config, and the tensors without their prefix."""
    config = json.loads((folder / "config.json").read_text())
    return config, {name.removeprefix("transformer."): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
