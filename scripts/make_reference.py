#!/usr/bin/env python3
"""Write small GPT-2 checkpoints, and the values that transformers computes with them, to tests/data.

    pip install -r scripts/requirements.txt
    python scripts/make_reference.py

Everything is seeded and runs on one thread, so a second run writes the same bytes.
tests/data/README.md, which this script also writes, describes each folder.
"""

import argparse
import json
import platform
from pathlib import Path

import numpy
import safetensors
import torch
import transformers
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from reference.interventions import write_interventions
from reference.models import activations, build_model, gradients, random_ids, save_checkpoint, save_reference
from reference.lora import write_lora, write_lora_parts
from reference.bigcode_cross import write_relatives

DATA = Path(__file__).resolve().parent.parent / "tests" / "data"

# Shapes without round numbers: 3 heads of 16, 77 positions, 101 tokens.
ODD = dict(vocab_size=101, n_positions=77, n_embd=48, n_layer=2, n_head=3)
ODD_LENGTHS = (1, 2, 33, 77)

# n_inner is 2C rather than the default 4C to save space: `odd` has the default.
SMALL = dict(vocab_size=31, n_positions=16, n_embd=12, n_inner=24, n_layer=2, n_head=2)
SMALL_BATCH, SMALL_LENGTH = 2, 9

# Each folder in this table holds the small model with this change in config.json.
VARIANTS: dict[str, dict] = {
    "gelu": dict(activation_function="gelu"),
    "gelu_pytorch_tanh": dict(activation_function="gelu_pytorch_tanh"),
    "relu": dict(activation_function="relu"),
    "silu": dict(activation_function="silu"),
    "no_scale": dict(scale_attn_weights=False),
    "inverse_layer": dict(scale_attn_by_inverse_layer_idx=True, n_layer=3),
    "reorder": dict(reorder_and_upcast_attn=True),
    "inner": dict(n_inner=20, layer_norm_epsilon=0.1),
    "untied": dict(tie_word_embeddings=False),
}

PADDED_LENGTHS = (9, 6, 3)
NEW_TOKENS = 20
EOS = [4, 34, 50]
# Beam searches of `odd`: end tokens and options of `generate`.
BEAMS: list[tuple[list[int] | None, dict]] = [
    (None, dict(num_beams=4)),
    (EOS, dict(num_beams=4)),
    (EOS, dict(num_beams=3, length_penalty=2.0)),
    (EOS, dict(num_beams=3, length_penalty=-1.0, early_stopping=True)),
    (EOS, dict(num_beams=5, length_penalty=0.0, repetition_penalty=1.3)),
    (None, dict(num_beams=2, repetition_penalty=1.3)),
]


# --- checkpoints --------------------------------------------------------------------------


def save_pickle(model: GPT2LMHeadModel, folder: Path, mask_dtype: torch.dtype) -> None:
    """config.json and pytorch_model.bin with the mask buffers of old checkpoints.

    In `state_dict`, a tied lm_head.weight and wte.weight are two views of one storage, and
    torch.save keeps it so.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    state = model.state_dict()  # an OrderedDict with `_metadata`, as in old checkpoints
    state.update(mask_buffers(model.config, mask_dtype))
    torch.save(state, folder / "pytorch_model.bin")


def mask_buffers(config: GPT2Config, dtype: torch.dtype) -> dict[str, Tensor]:
    """attn.bias (the lower triangle) and attn.masked_bias of every layer."""
    n = config.n_positions
    buffers = {}
    for layer in range(config.n_layer):
        attention = f"transformer.h.{layer}.attn"
        buffers[f"{attention}.bias"] = torch.ones(n, n).tril().view(1, 1, n, n).to(dtype)
        buffers[f"{attention}.masked_bias"] = torch.tensor(-1e4)
    return buffers


# --- reference values ---------------------------------------------------------------------


@torch.no_grad()
def stages(model: GPT2LMHeadModel, ids: Tensor) -> dict[str, Tensor]:
    """The output of each module of block 0, and of ln_f, from forward hooks."""
    caught: dict[str, Tensor] = {}
    block = model.transformer.h[0]
    outputs = {
        "h.0.ln_1": block.ln_1,
        "h.0.attn.c_attn": block.attn.c_attn,
        "h.0.attn.c_proj": block.attn.c_proj,
        "h.0.ln_2": block.ln_2,
        "h.0.mlp.c_fc": block.mlp.c_fc,
        "h.0.mlp.act": block.mlp.act,
        "h.0.mlp.c_proj": block.mlp.c_proj,
        "h.0": block,
        "ln_f": model.transformer.ln_f,
    }

    def keep_output(name: str):
        return lambda _module, _inputs, output: caught.__setitem__(name, output)

    hooks = [module.register_forward_hook(keep_output(name)) for name, module in outputs.items()]
    # No module returns the context: it is the input of c_proj.
    hooks.append(
        block.attn.c_proj.register_forward_pre_hook(
            lambda _module, inputs: caught.__setitem__("h.0.attn.context", inputs[0])
        )
    )
    model(ids, use_cache=False)
    for hook in hooks:
        hook.remove()
    return caught


@torch.no_grad()
def padded(model: GPT2LMHeadModel, side: str) -> dict[str, Tensor]:
    """A batch of rows of different lengths, padded on one side; every row has the same ids."""
    length = max(PADDED_LENGTHS)
    ids = torch.full((len(PADDED_LENGTHS), length), model.config.eos_token_id)
    mask = torch.zeros_like(ids)  # 1 = visible
    for row, visible in enumerate(PADDED_LENGTHS):
        place = slice(length - visible, length) if side == "left" else slice(0, visible)
        ids[row, place] = random_ids(seed=200 + row, batch=1, length=visible, vocab_size=model.config.vocab_size)[0]
        mask[row, place] = 1
    position_ids = (mask.cumsum(-1) - 1).clamp(min=0)
    logits = model(ids, attention_mask=mask, position_ids=position_ids, use_cache=False).logits
    for row, visible in enumerate(PADDED_LENGTHS):  # each row of the batch = the row alone
        seen = mask[row].bool()
        alone = model(ids[row, seen][None], use_cache=False).logits[0]
        torch.testing.assert_close(logits[row, seen], alone, rtol=1e-5, atol=1e-5)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": position_ids, "logits": logits}


def generated(model: GPT2LMHeadModel, prompt: list[int], eos: list[int] | None, **options):
    """What transformers finds without sampling, with its scores."""
    model.generation_config.eos_token_id = eos
    mask = torch.ones(1, len(prompt), dtype=torch.int64)
    options |= dict(max_new_tokens=NEW_TOKENS, do_sample=False, output_scores=True, return_dict_in_generate=True)
    return model.generate(torch.tensor([prompt]), attention_mask=mask, **options)


def continuation(model: GPT2LMHeadModel, prompt: list[int], repetition_penalty: float) -> dict:
    """Greedy ids after one prompt; no end token stops it."""
    options = dict(repetition_penalty=repetition_penalty, pad_token_id=model.config.eos_token_id)
    output = generated(model, prompt, None, **options)
    new_ids = output.sequences[0, len(prompt) :].tolist()
    assert len(new_ids) == NEW_TOKENS
    # No choice must depend on rounding: the best score leads the second by far more than 1e-5.
    for scores in output.scores:
        best, second = scores[0].topk(2).values
        assert best - second > 1e-3, f"prompt {prompt}: {best} against {second} is too close"
    return {"prompt": prompt, "repetition_penalty": repetition_penalty, "new_ids": new_ids}


def beams(model: GPT2LMHeadModel, prompt: list[int], eos: list[int] | None, **options) -> dict:
    """All hypotheses of a beam search after one prompt, best first, and their scores."""
    nothing = model.config.vocab_size  # no token has this id
    output = generated(model, prompt, eos, num_return_sequences=options["num_beams"], pad_token_id=nothing, **options)
    found = [[i for i in row.tolist() if i < model.config.vocab_size] for row in output.sequences[:, len(prompt) :]]
    scores = output.sequences_scores.tolist()
    return {"prompt": prompt, "eos_token_id": eos, "options": options, "ids": found, "scores": scores}


# --- the folders --------------------------------------------------------------------------


def write_odd(folder: Path) -> None:
    model = build_model(seed=1, **ODD)
    save_checkpoint(model, folder)
    tensors: dict[str, Tensor] = {}
    for t in ODD_LENGTHS:
        ids = random_ids(seed=100 + t, batch=1, length=t, vocab_size=model.config.vocab_size)
        tensors |= {f"T{t}.{name}": tensor for name, tensor in activations(model, ids).items()}
        if t == 33:
            tensors |= {f"T{t}.{name}": tensor for name, tensor in stages(model, ids).items()}
    del tensors["T77.attentions.1"]  # 71 kB that T33.attentions.1 covers well enough
    save_reference(tensors, folder)

    vocab_size = model.config.vocab_size
    prompts = [random_ids(seed=300 + t, batch=1, length=t, vocab_size=vocab_size)[0].tolist() for t in (4, 17)]
    cases = {
        "generate": [continuation(model, prompt, penalty) for penalty in (1.0, 1.3) for prompt in prompts],
        "beams": [beams(model, prompt, eos, **options) for prompt in prompts for eos, options in BEAMS],
    }
    for name, found in cases.items():
        rows = ",\n  ".join(map(json.dumps, found))
        (folder / f"{name}.json").write_text(f"[\n  {rows}\n]\n")


def write_variants(out: Path) -> None:
    for number, (name, change) in enumerate(VARIANTS.items()):
        model = build_model(seed=10 + number, **(SMALL | change))
        save_checkpoint(model, out / name)
        ids = random_ids(seed=400 + number, batch=SMALL_BATCH, length=SMALL_LENGTH, vocab_size=model.config.vocab_size)
        save_reference(activations(model, ids), out / name)
        if name == "untied":
            assert not torch.equal(model.lm_head.weight, model.transformer.wte.weight)
            save_pickle(model, out / "pickle", mask_dtype=torch.uint8)


def write_padded(out: Path) -> None:
    model = build_model(seed=30, **SMALL)
    save_checkpoint(model, out / "padded")
    sides = {f"{side}.{k}": v for side in ("left", "right") for k, v in padded(model, side).items()}
    save_reference(sides, out / "padded")
    save_pickle(model, out / "pickle_tied", mask_dtype=torch.bool)


def write_gradients(folder: Path) -> None:
    """Gradients of one loss without padding, and of one whose rows are padded on either side."""
    shape = SMALL | dict(n_positions=17, n_embd=15, n_inner=25, n_head=3)
    model = build_model(seed=40, **shape, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0).train()
    save_checkpoint(model, folder)
    vocab_size = model.config.vocab_size
    ids = random_ids(seed=440, batch=2, length=7, vocab_size=vocab_size)  # (B, T)
    tensors = {"input_ids": ids} | gradients(model, ids, torch.ones_like(ids))

    ids = random_ids(seed=441, batch=3, length=9, vocab_size=vocab_size)
    mask = torch.ones_like(ids)
    mask[1, :4], mask[2, -3:] = 0, 0  # padded on the left, on the right
    padded = {"input_ids": ids, "attention_mask": mask} | gradients(model, ids, mask)
    save_reference(tensors | {f"padded.{name}": tensor for name, tensor in padded.items()}, folder)


README = """\
# Reference data

GPT-2 checkpoints with random weights, and the values that transformers computes with them: f32, CPU, one thread,
`attn_implementation="eager"`, eval mode. Thanks to this folder, no test needs Python. Written by

    pip install -r scripts/requirements.txt
    python scripts/make_reference.py

with Python {python}, torch {torch}, transformers {transformers}, safetensors {safetensors}, numpy {numpy}.
The script is seeded: on one machine a second run writes the same bytes (another CPU may round differently
in the last digit). Do not edit a file here; change the script and run it again.

A folder holds `config.json` and `model.safetensors`, as `save_pretrained` writes them (names with the
`transformer.` prefix), and `reference.safetensors`: f32, but `input_ids`, `attention_mask` and
`position_ids` i64. `hidden_states.0` is the sum of the embeddings, `.i` the output of block i-1, and the
last one that of `ln_f`; `attentions.i` is (B, H, T, T) after softmax.

| folder | what it is |
|---|---|
| `odd` | 2 layers, 3 heads, C 48, N 77, V 101. For T in 1, 2, 33, 77: `T33.input_ids` (1, T), `T33.logits`, `T33.hidden_states.i`, `T33.attentions.i` (but no `T77.attentions.1`); for T = 33 also the stages of block 0: `T33.h.0.ln_1`, `.attn.c_attn`, `.attn.context` (input of c_proj), `.attn.c_proj`, `.ln_2`, `.mlp.c_fc`, `.mlp.act`, `.mlp.c_proj`, `T33.h.0` itself, and `T33.ln_f` |
| `odd/beams.json` | beam searches after the same prompts, 20 new ids at most: all hypotheses and their scores, with and without end tokens |
| `odd/generate.json` | greedy continuations of two prompts, each run alone, 20 new ids, never stopped by an end token; without and with a repetition penalty of 1.3 (which counts the prompt too). Every choice leads by more than 1e-3 |
| `odd/interventions.safetensors` | `input_ids` and `other_ids` (2, 9); logits (2, 9, V): `plain`; `zero`, heads 0.1 and 1.2 ablated; `mean`, 0.2 and 1.0 replaced by their mean over batch and positions; `scale`, 0.1 by 0.5 and 1.0 by -2; `patch`, 0.2 from the run on `other_ids`; `knock_out`, 7 from 4 and 8 from 0 everywhere, 5 from 5 in head 1.2, 3 from 1 in layer 0. For the first row and token 17 (L, H): `direct_logit_attribution`, `zero_effects`, `mean_effects` |
| `gelu` `gelu_pytorch_tanh` `relu` `silu` | `activation_function`; these and all below: 2 heads, C 12, `n_inner` 24, N 16, V 31, 2 layers unless said; `input_ids` (2, 9), `logits`, `hidden_states.i`, `attentions.i` |
| `no_scale` | `scale_attn_weights` false |
| `inverse_layer` | `scale_attn_by_inverse_layer_idx` true, 3 layers |
| `reorder` | `reorder_and_upcast_attn` true (in f32 the same function) |
| `inner` | `n_inner` 20 and `layer_norm_epsilon` 0.1 |
| `untied` | `tie_word_embeddings` false, `lm_head.weight` differs from `wte.weight` |
| `padded` | three rows of 9, 6 and 3 visible tokens, padded to 9 on the left and on the right: `left.input_ids`, `left.attention_mask` (1 = visible), `left.position_ids` (cumsum - 1, at least 0), `left.logits`, and `right.` the same. Compare logits at visible positions only: transformers gives a hidden row uniform attention, we give zeros |
| `gradients` | 3 heads, C 15, `n_inner` 25, N 17, dropout 0; `input_ids` (2, 7), `loss` (next-token cross entropy, mean over the 12 positions that have a next token), and `grad.NAME` for every parameter, NAME without `transformer.`; `grad.wte.weight` includes the share of the tied head. `padded.`: the same of three rows of 9, one whole, one padded by 4 on the left, one by 3 on the right, with `padded.attention_mask`; positions are cumsum - 1, and the mean is over the visible positions that have a visible next token |
| `bigcode` `bigcode_heads` | gpt_bigcode with one head of keys for 3 heads of queries, and with `multi_query` false, where `c_attn` holds query, key and value head by head; C 12, `n_inner` 24, N 16, V 31, 2 layers; `input_ids` (2, 9), `logits`, `hidden_states.i`, `attentions.i`, and `loss` and `grad.NAME` as in `gradients` |
| `cross` | `add_cross_attention` true, 3 heads of 4; besides the same: `encoder_hidden_states` (2, 5, C), of which `encoder_attention_mask` hides the last two in row 1; `cross_attentions.i` (2, H, 9, 5); `grad.encoder_hidden_states`; and `alone.logits` and `alone.hidden_states.i` without an encoder |
| `pickle` | the weights of `untied` as `pytorch_model.bin` (zip format), with u8 `attn.bias` and f32 `attn.masked_bias` buffers |
| `pickle_tied` | the weights of `padded` as `pytorch_model.bin`: `lm_head.weight` and `wte.weight` share one storage, `attn.bias` is bool |
| `attention` | no checkpoint: what PyTorch's attention gives for shared keys, windows, added scores, soft cap and ALiBi. `q` (B, H, T, D), `k`, `v`, `context` (B, H, T, Dv), its gradient `grad`, `dq`, `dk`, `dv`, computed in f64; written by `python scripts/make_attention_reference.py` |
| `lora_parts` | adapters of `lora/base` as PEFT 0.21 writes them: trained biases, updates of `wte`, `wpe` and `lm_head`, and adapters of a model without a head (`bare_*`); `input_ids` and, for each, `NAME.logits` |
| `gguf` | `tiny.gguf`, a GPT-2 of one layer in Q8_0 as llama.cpp's converter writes it, and its numbers in `tiny.safetensors`; `starcoder.gguf`, the model of `bigcode` under llama.cpp's names; `blocks.safetensors`, random blocks of five formats and the numbers in them; written by `python scripts/make_gguf_reference.py` with gguf 0.19.0 |
| `brought` | one small GPT-2 in the forms that other programs save it in: `torch.save` before 1.6 and with protocols 3 and 4, views of one storage, strides, shards of GGUF, nanoGPT, llm.c; `plain.safetensors` has its numbers, `expected.safetensors` the logits of the ids 0, 1, .., and `packed.safetensors` random blocks and their numbers; written by `python scripts/make_brought_reference.py` |
| `seeds` | no checkpoint: `parameters.safetensors`, the random weights behind the numbers that the seed documents print, in the names of PyTorch state dicts; written by `python scripts/make_seed_constants.py` |
| `tokenizers` | no checkpoint: a small byte-level vocabulary (`vocab.json`, `merges.txt`, `tokenizer.json`), the files that may lie beside it, and the ids that transformers' AutoTokenizer gives with them (`cases.json`); `written.json`, the tokenizer.json that transformers itself writes; written by `python scripts/make_tokenizer_reference.py` |
| `circuits` | a model of 3 layers, and what TransformerLens and nnsight compute with it in f64: hooks, interventions, patching, edges, head scores, weight circuits; written by `python scripts/make_circuit_reference.py`; see its own README |
"""


def write_readme(out: Path) -> None:
    versions = {module.__name__: module.__version__ for module in (transformers, safetensors, numpy)}
    versions["torch"] = torch.__version__.split("+")[0]  # whichever build: +cpu, +cu130
    versions["python"] = ".".join(platform.python_version_tuple()[:2])
    (out / "README.md").write_text(README.format(**versions))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=DATA, help="folder to write to (default: tests/data)")
    out = parser.parse_args().out

    torch.set_num_threads(1)  # the order of a sum must not depend on the machine
    transformers.utils.logging.disable_progress_bar()
    write_odd(out / "odd")
    two = [random_ids(seed=500 + i, batch=2, length=9, vocab_size=ODD["vocab_size"]) for i in range(2)]
    write_interventions(out / "odd", *two)
    write_variants(out)
    write_padded(out)
    write_gradients(out / "gradients")
    write_relatives(out)
    write_lora(out)
    write_lora_parts(out)
    write_readme(out)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    print(f"{out}: {size:,} bytes")


if __name__ == "__main__":
    main()
