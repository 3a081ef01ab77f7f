#!/usr/bin/env python3
"""Writes tests/data/brought: one small GPT-2 in the forms that other programs save it in.

    pip install -r scripts/requirements.txt gguf
    python scripts/make_brought_reference.py

torch.save, GGUFWriter and transformers write the files. nanoGPT's and llm.c's layouts are written here, after nanoGPT's
`model.py` (`GPT`) and `train.py` (`checkpoint`) and llm.c's `train_gpt2.py` (`write_model`); nanoGPT's logits are those of the
module below. `expected.safetensors` holds the logits of the ids 0, 1, .. for each kind.
"""

import argparse
from collections import OrderedDict
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.quants import dequantize
from safetensors.torch import save_file
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

OUT = Path(__file__).resolve().parent.parent / "tests" / "data" / "brought"
V, N, C, H, L = 13, 8, 8, 2, 2
LINEAR = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
# The places of f16 numbers in a block; the others are drawn as bytes.
PACKED = {"Q4_1": [0, 2], "Q5_1": [0, 2], "Q2_K": [80, 82], "Q3_K": [108], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": []}


def whole_model():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=V, n_positions=N, n_embd=C, n_head=H, n_layer=L, bos_token_id=None, eos_token_id=None)
    model = GPT2LMHeadModel(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


class NanoGPT(nn.Module):
    """nanoGPT's model without dropout and, as with `bias=False`, without biases."""

    def __init__(self):
        super().__init__()
        linear = lambda i, o: nn.Linear(i, o, bias=False)
        norm = lambda: nn.LayerNorm(C, bias=False)
        block = lambda: nn.ModuleDict(
            dict(
                ln_1=norm(),
                attn=nn.ModuleDict(dict(c_attn=linear(C, 3 * C), c_proj=linear(C, C))),
                ln_2=norm(),
                mlp=nn.ModuleDict(dict(c_fc=linear(C, 4 * C), c_proj=linear(4 * C, C))),
            )
        )
        parts = dict(wte=nn.Embedding(V, C), wpe=nn.Embedding(N, C), h=nn.ModuleList(block() for _ in range(L)), ln_f=norm())
        self.transformer = nn.ModuleDict(parts)
        self.lm_head = linear(C, V)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, ids):
        x = self.transformer.wte(ids) + self.transformer.wpe(torch.arange(ids.shape[1]))
        for block in self.transformer.h:
            heads = block.attn.c_attn(block.ln_1(x)).split(C, dim=2)
            q, k, v = (part.view(1, -1, H, C // H).transpose(1, 2) for part in heads)
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + block.attn.c_proj(y.transpose(1, 2).reshape(1, -1, C))
            x = x + block.mlp.c_proj(nn.functional.gelu(block.mlp.c_fc(block.ln_2(x))))
        return self.lm_head(self.transformer.ln_f(x))


def nano_gpt(file):
    torch.manual_seed(1)
    model = NanoGPT().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    sizes = dict(n_layer=L, n_head=H, n_embd=C, block_size=N, bias=False, vocab_size=V, dropout=0.0)
    names = OrderedDict((f"_orig_mod.{name}", tensor) for name, tensor in model.state_dict().items())
    optimizer = torch.optim.AdamW(model.parameters())
    saved = dict(model=names, optimizer=optimizer.state_dict(), model_args=sizes, iter_num=5, best_val_loss=torch.tensor(1.5))
    torch.save(saved | dict(config=dict(dataset="x", device="cpu", weight_decay=0.1)), file)
    return model(torch.arange(N)[None]).detach()


def llm_c(file, state, padded=16):
    head = np.zeros(256, dtype=np.int32)
    head[:8] = [20240326, 3, N, V, L, H, C, padded]
    table = np.zeros((padded, C), dtype=np.float32)
    table[:V] = state["transformer.wte.weight"]
    parts = [table, state["transformer.wpe.weight"].numpy()]
    order = ["ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias"]
    order += ["ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias"]
    for name in order:
        for layer in range(L):
            tensor = state[f"transformer.h.{layer}.{name}"]
            parts.append((tensor.T if name in LINEAR else tensor).contiguous().numpy())
    parts += [state["transformer.ln_f.weight"].numpy(), state["transformer.ln_f.bias"].numpy()]
    file.write_bytes(head.tobytes() + b"".join(part.astype("<f4").tobytes() for part in parts))


def in_parts(stem, state):
    writer = gguf.GGUFWriter(None, "gpt2", split_max_tensors=12)
    writer.add_block_count(L)
    writer.add_context_length(N)
    writer.add_embedding_length(C)
    writer.add_feed_forward_length(4 * C)
    writer.add_head_count(H)
    writer.add_layer_norm_eps(1e-5)
    names = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm"}
    inside = {"ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output"}
    inside |= {"ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
    for name, tensor in state.items():
        module, parameter = name.removeprefix("transformer.").rsplit(".", 1)
        if module in names:
            target = names[module]
        else:
            _, layer, rest = module.split(".", 2)
            target = f"blk.{layer}.{inside[rest]}"
        tensor = tensor.T.contiguous() if name.endswith(LINEAR) else tensor
        writer.add_tensor(f"{target}.{parameter}", tensor.numpy())
    writer.write_header_to_file(stem)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def packed():
    rng, out = np.random.default_rng(2), {}
    for name, halves in PACKED.items():
        kind = gguf.GGMLQuantizationType[name]
        raw = rng.integers(0, 256, (4, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
        for at in halves:
            raw[:, at : at + 2] = (rng.standard_normal((4, 1)) * 0.01).astype(np.float16).view(np.uint8)
        if name == "MXFP4":
            raw[:, 0] = rng.integers(120, 130, 4)
        out[f"{name}.blocks"] = torch.from_numpy(raw.reshape(-1))
        out[f"{name}.values"] = torch.from_numpy(dequantize(raw, kind).astype(np.float32).reshape(-1))
    save_file(out, OUT / "packed.safetensors")


@torch.no_grad()
def main():
    OUT.mkdir(parents=True, exist_ok=True)
    model = whole_model()
    model.config.save_pretrained(OUT)
    logits = model(torch.arange(N)[None]).logits
    state = {name: tensor.clone() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    save_file(state, OUT / "plain.safetensors", metadata={"format": "pt"})
    torch.save(model.state_dict(), OUT / "legacy.bin", _use_new_zipfile_serialization=False)
    for protocol in (3, 4):
        torch.save({"state_dict": state, "epoch": 3}, OUT / f"protocol{protocol}.bin", pickle_protocol=protocol)
    # The same storages twice, which keeps the files small.
    torch.save({"student": state, "teacher": dict(state)}, OUT / "two.bin")
    torch.save({"ema": dict(state), "model": state}, OUT / "averaged.bin")
    one = torch.cat([tensor.flatten() for tensor in state.values()])  # every tensor is a part of one storage
    parts, at = OrderedDict(), 0
    for name, tensor in state.items():
        parts[name] = one[at : at + tensor.numel()].view_as(tensor)
        at += tensor.numel()
    torch.save(parts, OUT / "shared.bin")
    turned = {name: tensor.T.contiguous().T if tensor.dim() == 2 else tensor for name, tensor in state.items()}
    turned["transformer.ln_f.bias"] = torch.zeros(1).expand(C)
    torch.save(turned, OUT / "strided.bin")
    torch.save({"model." + name: tensor.half() for name, tensor in turned.items()}, OUT / "strided_half.bin")
    turned_model = GPT2LMHeadModel(model.config).eval()
    turned_model.load_state_dict(turned, strict=False)
    expected = {
        "plain": logits,
        "strided": turned_model(torch.arange(N)[None]).logits,
        "strided_half": turned_model.half().float()(torch.arange(N)[None]).logits,
        "nano": nano_gpt(OUT / "ckpt.pt"),
    }
    llm_c(OUT / "llmc.bin", state)
    in_parts(OUT / "parts.gguf", state)
    packed()
    save_file({name: tensor.clone().contiguous() for name, tensor in expected.items()}, OUT / "expected.safetensors")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    main()
