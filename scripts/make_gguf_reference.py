#!/usr/bin/env python3
"""Writes tests/data/gguf with PyPI's `gguf`, llama.cpp's own package for these files.

    pip install -r scripts/requirements.txt gguf==0.19.0
    python scripts/make_gguf_reference.py

`blocks.safetensors` holds, for each format, blocks of bytes and the numbers that `gguf` reads from them; and numbers with the
Q8_0 blocks that it makes of them. `tiny.gguf` is a GPT-2 of one layer as llama.cpp's converter writes it, in Q8_0, and
`tiny.safetensors` the same model's numbers as `gguf` dequantizes them, under a checkpoint's names. `starcoder.gguf` is the model
of tests/data/bigcode as llama.cpp's converter writes a GPTBigCodeForCausalLM, with the names that `gguf` has for it.
"""

import argparse
import json
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize, quantize
from safetensors.numpy import load_file, save_file

OUT = Path(__file__).resolve().parent.parent / "tests" / "data" / "gguf"
TYPES = gguf.GGMLQuantizationType
HALVES = {"Q4_0": [0], "Q5_0": [0], "Q8_0": [0], "Q4_K": [0, 2], "Q6_K": [208]}  # where a block has an f16
LATER = {"Q5_K": [0, 2]}  # with random numbers of their own: the others stay as they are
V, N, C, H = 257, 16, 32, 2


def random_blocks(formats, rng):
    out = {}
    for name, halves in formats.items():
        kind = TYPES[name]
        count, size = 6, gguf.GGML_QUANT_SIZES[kind][1]
        raw = rng.integers(0, 256, (count, size), dtype=np.uint8)
        for at in halves:
            raw[:, at : at + 2] = (rng.standard_normal((count, 1)) * 0.01).astype(np.float16).view(np.uint8)
        out[f"{name}.blocks"] = raw.reshape(-1)
        out[f"{name}.values"] = dequantize(raw, kind).astype(np.float32).reshape(-1)
    return out


def blocks(rng):
    out = random_blocks(HALVES, rng) | random_blocks(LATER, np.random.default_rng(18))
    x = (rng.standard_normal(64 * 32) * np.exp(rng.standard_normal(64 * 32))).astype(np.float32)
    x[:32], x[32:40] = 0, 1e-9
    # Ties between two codes: the largest of a block is 127 codes.
    x[64:96] = np.arange(32) * 0.5 * np.where(np.arange(32) % 2, -1, 1)
    x[64] = 127
    out["Q8_0.of"], out["Q8_0.made"] = x, quantize(x.reshape(1, -1), TYPES.Q8_0).reshape(-1)
    return out


def bytes_as_letters():
    printing = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in printing else chr(next(others)) for b in range(256)]


def tiny(rng):
    writer = gguf.GGUFWriter(OUT / "tiny.gguf", "gpt2")
    writer.add_name("tiny")
    writer.add_block_count(1)
    writer.add_context_length(N)
    writer.add_embedding_length(C)
    writer.add_feed_forward_length(4 * C)
    writer.add_head_count(H)
    writer.add_layer_norm_eps(1e-5)
    writer.add_file_type(7)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*bytes_as_letters(), "<|endoftext|>"])
    writer.add_token_types([1] * 256 + [3])
    writer.add_token_merges([])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(256)
    plain = {}

    def add(name, of, shape, transposed=False, quantized=False):
        x = (rng.standard_normal(shape) * 0.2).astype(np.float32)
        if quantized:
            q = quantize(x, TYPES.Q8_0)
            writer.add_tensor(name, q, raw_dtype=TYPES.Q8_0)
            x = dequantize(q, TYPES.Q8_0).astype(np.float32)
        else:
            writer.add_tensor(name, x)
        plain[of] = np.ascontiguousarray(x.T) if transposed else x

    add("token_embd.weight", "wte.weight", (V, C), quantized=True)
    add("position_embd.weight", "wpe.weight", (N, C))
    for name, of in (("attn_norm", "ln_1"), ("ffn_norm", "ln_2")):
        add(f"blk.0.{name}.weight", f"h.0.{of}.weight", (C,))
        add(f"blk.0.{name}.bias", f"h.0.{of}.bias", (C,))
    for name, of, inputs, outputs in (
        ("attn_qkv", "attn.c_attn", C, 3 * C),
        ("attn_output", "attn.c_proj", C, C),
        ("ffn_up", "mlp.c_fc", C, 4 * C),
        ("ffn_down", "mlp.c_proj", 4 * C, C),
    ):
        add(f"blk.0.{name}.weight", f"h.0.{of}.weight", (outputs, inputs), transposed=True, quantized=True)
        add(f"blk.0.{name}.bias", f"h.0.{of}.bias", (outputs,))
    add("output_norm.weight", "ln_f.weight", (C,))
    add("output_norm.bias", "ln_f.bias", (C,))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return plain


def starcoder():
    case = OUT.parent / "bigcode"
    config = json.loads((case / "config.json").read_text())
    writer = gguf.GGUFWriter(OUT / "starcoder.gguf", "starcoder")
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_feed_forward_length(config["n_inner"])
    writer.add_block_count(config["n_layer"])
    writer.add_head_count(config["n_head"])
    writer.add_head_count_kv(1)
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    writer.add_file_type(0)
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.STARCODER, config["n_layer"])
    for name, tensor in load_file(case / "model.safetensors").items():
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(17)
    save_file(blocks(rng), OUT / "blocks.safetensors")
    save_file(tiny(rng), OUT / "tiny.safetensors")
    starcoder()


if __name__ == "__main__":
    main()
