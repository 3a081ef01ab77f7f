#!/usr/bin/env python3
"""What a generated token of GPT-2 small asks of a GPU: launches, products, allocations, copies and waits. Needs no GPU.

    scripts/cuda/launches.py [PROGRAM]          the numbers of docs/gpu.md's table, with kernels by name below them
    scripts/cuda/launches.py --most 75 [...]    fails if a fused token takes as many launches and products, or one with a CUDA graph
                                                more than its launch, a copy up and one down

PROGRAM is `gpt2` on the driver that runs on the processor (default: scripts/cuda/on-cpu.sh). It generates texts of two lengths with a
model of 12 layers, written here, whose one head is 64 wide: no count depends on the width. What the longer text has more, divided by
the tokens that it has more, is what a token takes.
"""

import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
LAYERS, WIDTH, VOCABULARY, POSITIONS = 12, 64, 64, 64
SHORT, LONG = 4, 20


def write_model(folder):
    """A model of GPT-2 small's layers, with small numbers everywhere."""
    c = WIDTH
    shapes = {"wte.weight": [VOCABULARY, c], "wpe.weight": [POSITIONS, c], "ln_f.weight": [c], "ln_f.bias": [c]}
    for n in range(LAYERS):
        of_layer = {
            "ln_1.weight": [c], "ln_1.bias": [c], "attn.c_attn.weight": [c, 3 * c], "attn.c_attn.bias": [3 * c],
            "attn.c_proj.weight": [c, c], "attn.c_proj.bias": [c], "ln_2.weight": [c], "ln_2.bias": [c],
            "mlp.c_fc.weight": [c, 4 * c], "mlp.c_fc.bias": [4 * c], "mlp.c_proj.weight": [4 * c, c], "mlp.c_proj.bias": [c],
        }  # fmt: skip
        shapes |= {f"h.{n}.{name}": shape for name, shape in of_layer.items()}
    header, data, numbers = {}, b"", random.Random(1)
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = struct.pack(f"<{count}f", *(numbers.gauss(0, 0.2) for _ in range(count)))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    config = {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": LAYERS, "n_head": 1, "n_embd": c,
        "vocab_size": VOCABULARY, "n_positions": POSITIONS, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
        "eos_token_id": None, "bos_token_id": None,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


def counts(program, model, dtype, code, products, graph, tokens):
    """The times of everything that a run of `tokens` tokens asked for."""
    report = model / "report"
    command = [program, "generate", "--ids", "3,1,4,1,5", "--model", model, "--device", "cuda", "--dtype", dtype, "--impl", code]
    command += ["--greedy", "--max-new-tokens", str(tokens), *(["--cuda-graph"] if graph else [])]
    environment = {**os.environ, "CUDA_ON_CPU_REPORT": str(report), "CANDLE_FUSED_CUDA_PRODUCTS": products}
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(f"error: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    found = {}
    for line in report.read_text().splitlines()[1:]:
        what, name, times = line[:10].strip(), line[11:55].strip(), line[56:66]
        if what != "ran":
            found[what, name] = int(times)
    return found


def of_a_token(program, model, *how):
    short = counts(program, model, *how, SHORT)
    long = counts(program, model, *how, LONG)
    each = {key: (times - short.get(key, 0)) / (LONG - SHORT) for key, times in long.items()}
    return {key: times for key, times in each.items() if times}


def row(each):
    """The sums of a table's row."""
    total = lambda what, name="": sum(times for key, times in each.items() if key[0] == what and key[1].startswith(name))
    return [
        total("graph"), total("launch"), total("product"), total("graph") + total("launch") + total("product"), total("memory", "allocate"),
        total("copy", "host"), total("copy", "device to host"), total("copy", "device to device"), total("sync"),
    ]  # fmt: skip


# A launch of a graph, a copy up and one down, which waits by itself.
AS_A_GRAPH = [1, 0, 0, 1, 0, 1, 1, 0, 0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?", default=REPOSITORY / "scripts/cuda/on-cpu.sh", metavar="PROGRAM")
    parser.add_argument("--most", type=int, metavar="N", help="fail if a fused token takes N launches and products or more")
    given = parser.parse_args()
    below, many = [], []
    print("| | graphs | launches | products | together | allocations | copies up | down | on the GPU | waits |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="gpt2-launches-") as folder:
        write_model(Path(folder))
        for code, products, graph in (("eager", "", False), ("fused", "", False), ("fused", "", True), ("fused", "cublas", False)):
            for dtype in ("f32", "bf16"):
                each = of_a_token(given.program, Path(folder), dtype, code, products, graph)
                numbers = row(each)
                name = f"{code}, {dtype}" + (", products by cuBLAS" if products else "") + (", `--cuda-graph`" if graph else "")
                print(f"| {name} |", " | ".join(f"{number:.4g}" for number in numbers), "|", flush=True)
                kinds = ("graph", "launch", "product")
                named = ", ".join(f"{times:.4g} {name}" for (what, name), times in each.items() if what in kinds)
                below.append(f"{name}: {named}")
                if given.most and code == "fused" and not products and not 0 < numbers[3] < given.most:
                    many.append(f"error: a token in {dtype} takes {numbers[3]:.4g} launches and products, expected 1 to {given.most - 1}")
                if given.most and code == "fused" and not graph and ("launch", "candidates_f32") not in each:
                    many.append(f"error: a token in {dtype} copies all logits down: no kernel finds what its choice needs")
                if given.most and graph and numbers != AS_A_GRAPH:
                    many.append(f"error: a token in {dtype} with a graph takes {numbers}, expected {AS_A_GRAPH}")
    print("", *below, *many, sep="\n")
    return 1 if many else 0


if __name__ == "__main__":
    sys.exit(main())
