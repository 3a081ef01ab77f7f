"""The reference data of GPT-2's relatives: gpt_bigcode, and GPT-2 with cross-attention."""

from pathlib import Path

import torch
from transformers import GPTBigCodeConfig, GPTBigCodeForCausalLM, PreTrainedModel

from reference.models import activations, build_model, gradients, random_ids, randomize, save_checkpoint, save_reference

SHAPE = dict(vocab_size=31, n_positions=16, n_embd=12, n_inner=24, n_layer=2, n_head=3)
NO_DROPOUT = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
BATCH, LENGTH, ENCODER_LENGTH = 2, 9, 5


def write_relatives(out: Path) -> None:
    write_bigcode(out / "bigcode", seed=50, multi_query=True)
    write_bigcode(out / "bigcode_heads", seed=51, multi_query=False)
    write_cross(out / "cross", seed=52)


def build_bigcode(seed: int, multi_query: bool, **config: object) -> GPTBigCodeForCausalLM:
    """A gpt_bigcode in eval mode in which every parameter is random and affects the result."""
    last = int(config["vocab_size"]) - 1
    config = GPTBigCodeConfig(
        bos_token_id=last, eos_token_id=last, multi_query=multi_query, attn_implementation="eager", **config
    )
    model = GPTBigCodeForCausalLM(config)
    randomize(model, seed)
    return model.eval()


def write_bigcode(folder: Path, seed: int, multi_query: bool) -> None:
    write(build_bigcode(seed, multi_query, **SHAPE, **NO_DROPOUT), folder, seed)


def write_cross(folder: Path, seed: int) -> None:
    model = build_model(seed, add_cross_attention=True, **SHAPE, **NO_DROPOUT)
    generator = torch.Generator().manual_seed(seed + 1000)
    hidden_states = torch.randn(BATCH, ENCODER_LENGTH, SHAPE["n_embd"], generator=generator)
    mask = torch.ones(BATCH, ENCODER_LENGTH, dtype=torch.int64)
    mask[1, -2:] = 0
    write(model, folder, seed, encoder_hidden_states=hidden_states, encoder_attention_mask=mask)


def write(model: PreTrainedModel, folder: Path, seed: int, **inputs: torch.Tensor) -> None:
    """The checkpoint, its activations, and the gradients of a loss."""
    save_checkpoint(model, folder)
    ids = random_ids(seed=400 + seed, batch=BATCH, length=LENGTH, vocab_size=SHAPE["vocab_size"])
    tensors = inputs | activations(model, ids, **inputs)
    if inputs:
        alone = activations(model, ids)
        tensors |= {f"alone.{name}": alone[name] for name in alone if name.startswith(("logits", "hidden_states"))}
        inputs["encoder_hidden_states"].requires_grad_()
    tensors |= gradients(model, ids, torch.ones_like(ids), **inputs)
    if inputs:
        tensors["grad.encoder_hidden_states"] = inputs["encoder_hidden_states"].grad
    save_reference(tensors, folder)
