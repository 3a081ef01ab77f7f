#!/usr/bin/env python3
"""Files of other tools: what `gpt2` makes of each kind, beside what the tool's own model computes.

    pip install -r scripts/requirements.txt gguf pytorch-lightning trl==0.19.1
    python scripts/compare_with_tools.py [--gpt2 BINARY] [WORD...]      all kinds, or those whose names contain a word

Every file is made by the tool that it is named after: torch, transformers, PEFT, Lightning, TRL, gguf, and llama-gguf-split if
GGUF_SPLIT names one. nanoGPT's and llm.c's are in `make_brought_reference.py`. A kind is either read, and then its logits agree
with the oracle's within 1e-5 of the largest, or refused, and then the message has the words of its row and does not call the file
damaged. A tool that is missing is a row that says so. Exits 1 if anything disagrees.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections import OrderedDict
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing here needs the network
warnings.filterwarnings("ignore")

import torch
import transformers
from safetensors.torch import load_file, save_file, save_model
from transformers import GPT2Config, GPT2LMHeadModel

from reference.models import randomize

ROOT = Path(__file__).resolve().parent.parent
TOLERANCE = 1e-5
SIZES = dict(vocab_size=101, n_positions=77, n_embd=48, n_layer=2, n_head=3, bos_token_id=None, eos_token_id=None)
IDS = [5, 6, 7, 99, 0, 42]


# --- oracles -----------------------------------------------------------------------------------------------------------------


def model_of(kind=GPT2LMHeadModel, **changes):
    torch.manual_seed(3)
    model = kind(GPT2Config(attn_implementation="eager", **(SIZES | changes)))
    randomize(model, 3)
    return model.eval()


def with_head(body):
    """The language model over this body, whose head is its embedding."""
    whole = GPT2LMHeadModel(body.config).eval()
    whole.transformer.load_state_dict(body.state_dict())
    return whole


@torch.no_grad()
def logits(model):
    return model(torch.tensor([IDS])).logits[0].float()


def config_of(model, folder):
    folder.mkdir(parents=True, exist_ok=True)
    model.config.architectures = ["GPT2LMHeadModel"]
    model.config.save_pretrained(folder)


def pickled(model, folder, saved, name="pytorch_model.bin", **options):
    config_of(model, folder)
    torch.save(saved, folder / name, **options)
    return folder


# --- kinds that are read: each writes a file and returns (what --model is given, the expected logits) ----------------------------


def heads(root):
    """Models with other heads, as transformers saves them; without `GPT2LMHeadModel` in the config's list."""
    for name in ("GPT2Model", "GPT2DoubleHeadsModel", "GPT2ForSequenceClassification", "GPT2ForTokenClassification", "GPT2ForQuestionAnswering"):
        model = model_of(getattr(transformers, name), num_labels=3)
        body = model if name == "GPT2Model" else model.transformer
        for kind in ("safetensors", "pickle"):
            folder = root / f"{name}-{kind}"
            if kind == "safetensors":
                model.save_pretrained(folder)
            else:
                pickled(model, folder, model.state_dict())
            yield f"{name}, {kind}", folder, logits(with_head(body))


def wrapped(root):
    """Names with the prefixes of wrappers."""
    model = model_of()
    expected = logits(model)
    yield "torch.compile", pickled(model, root / "compile", torch.compile(model).state_dict()), expected
    parallel = torch.nn.DataParallel(model)
    yield "DataParallel", pickled(model, root / "parallel", parallel.state_dict()), expected
    both = torch.compile(torch.nn.DataParallel(model))
    yield "torch.compile of DataParallel", pickled(model, root / "both", {"model": both.state_dict(), "step": 3}), expected
    average = torch.optim.swa_utils.AveragedModel(model)
    yield "AveragedModel (EMA)", pickled(model, root / "average", average.state_dict()), expected
    optimizer = torch.optim.AdamW(model.parameters())
    trainer = {"epoch": 1, "model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict(), "loss": torch.tensor(1.0)}
    yield "PyTorch's tutorial", pickled(model, root / "tutorial", trainer), expected
    averaged = {"model": model.state_dict(), "ema": model_of().state_dict()}
    yield "an average under another key", pickled(model, root / "ema", averaged), expected
    deepspeed = {"module": model.state_dict(), "ds_config": {}, "ds_version": "0.15", "buffer_names": [], "dp_world_size": 1}
    file = "mp_rank_00_model_states.pt"
    yield "DeepSpeed's layout", pickled(model, root / "deepspeed", deepspeed, file) / file, expected
    safe = root / "safe"
    config_of(model, safe)
    save_file({f"_orig_mod.module.{k}": v.clone() for k, v in model.state_dict().items()}, safe / "model.safetensors")
    yield "prefixes in safetensors", safe, expected
    save_model(torch.compile(model), str((root / "save_model").mkdir() or root / "save_model" / "model.safetensors"))
    config_of(model, root / "save_model")
    yield "safetensors.save_model", root / "save_model", expected


def lightning(root):
    import pytorch_lightning

    class Module(pytorch_lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model_of()
            self.metric = torch.nn.Linear(2, 2)

        def training_step(self, batch, _):
            return self.model(batch, labels=batch).loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    module = Module()
    folder = root / "lightning"
    options = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu")
    trainer = pytorch_lightning.Trainer(max_steps=2, **options)
    trainer.fit(module, torch.utils.data.DataLoader(torch.tensor([IDS, IDS]), batch_size=1))
    config_of(module.model, folder)
    trainer.save_checkpoint(folder / "last.ckpt")
    yield "Lightning's last.ckpt", folder / "last.ckpt", logits(module.model.eval())


def value_head(root):
    from trl.models.modeling_value_head import AutoModelForCausalLMWithValueHead

    model = model_of()
    for safe in (False, True):
        folder = root / f"value-{safe}"
        model.save_pretrained(root / "base")
        headed = AutoModelForCausalLMWithValueHead.from_pretrained(str(root / "base"))
        headed.save_pretrained(folder, safe_serialization=safe)
        if not (folder / "config.json").exists():
            config_of(model, folder)
        yield f"TRL's value head, {'safetensors' if safe else 'pickle'}", folder, logits(model)


def numbers(root):
    """Dtypes, layouts and ages of files."""
    for dtype in ("float64", "float16", "bfloat16"):
        model = model_of().to(getattr(torch, dtype))
        model.save_pretrained(root / dtype)
        yield dtype, root / dtype, logits(model.float())
    model = model_of()
    expected = logits(model)
    for protocol in (2, 3, 4, 5):
        yield f"protocol {protocol}", pickled(model, root / f"p{protocol}", model.state_dict(), pickle_protocol=protocol), expected
    yield "before PyTorch 1.6", pickled(model, root / "old", model.state_dict(), _use_new_zipfile_serialization=False), expected
    parameters = OrderedDict(model.named_parameters())
    yield "parameters with gradients", pickled(model, root / "parameters", parameters), expected
    yield "numpy scalars beside", pickled(model, root / "beside", {"state_dict": model.state_dict(), "args": argparse.Namespace(lr=1)}), expected
    model.save_pretrained(root / "shards", max_shard_size="40KB")
    yield "shards", root / "shards", expected
    extra = {k: v.clone() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    for layer in range(2):
        extra[f"transformer.h.{layer}.attn.bias"] = torch.ones(77, 77).tril().view(1, 1, 77, 77)
        extra[f"transformer.h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    extra |= {"position_ids": torch.arange(77), "step": torch.tensor(3), "none": torch.zeros(0)}
    config_of(model, root / "extra")
    save_file(extra, root / "extra" / "model.safetensors")
    yield "buffers, scalars and empty tensors", root / "extra", expected
    untied = model_of(tie_word_embeddings=False)
    untied.save_pretrained(root / "untied")
    yield "an untied head", root / "untied", logits(untied)


def checkpoints(root):
    """What transformers' Trainer leaves."""
    model = model_of()
    folder = root / "trainer"
    data = [{"input_ids": torch.tensor(IDS), "labels": torch.tensor(IDS)}] * 2
    options = dict(max_steps=1, save_steps=1, report_to=[], use_cpu=True, disable_tqdm=True)
    trainer = transformers.Trainer(model, transformers.TrainingArguments(output_dir=folder, **options), train_dataset=data)
    sys.stdout, before = open(os.devnull, "w"), sys.stdout
    trainer.train()
    sys.stdout = before
    yield "Trainer's checkpoint-1", folder / "checkpoint-1", logits(model.eval())


def merged(root):
    import peft

    model = peft.get_peft_model(model_of(), peft.LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False))
    whole = model.merge_and_unload().eval()
    whole.save_pretrained(root / "merged")
    yield "PEFT, merged", root / "merged", logits(whole)
    base = {f"base_model.model.{k}": v for k, v in whole.state_dict().items()}
    yield "PEFT's prefix", pickled(whole, root / "base_model", base), logits(whole)


def ggufs(root):
    import gguf

    from make_brought_reference import LINEAR

    model = model_of()
    names = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "ln_1": "attn_norm", "attn.c_attn": "attn_qkv"}
    names |= {"attn.c_proj": "attn_output", "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
    for kind, parts in (("F32", 0), ("F16", 0), ("F32", 9)):
        folder = root / f"gguf-{kind}-{parts}"
        folder.mkdir()
        writer = gguf.GGUFWriter(None if parts else folder / "m.gguf", "gpt2", split_max_tensors=parts)
        writer.add_block_count(2)
        writer.add_context_length(77)
        writer.add_embedding_length(48)
        writer.add_feed_forward_length(192)
        writer.add_head_count(3)
        writer.add_layer_norm_eps(1e-5)
        held = OrderedDict()
        for name, tensor in model.state_dict().items():
            if name == "lm_head.weight":
                continue
            module, parameter = name.removeprefix("transformer.").rsplit(".", 1)
            target = names[module] if module in names else f"blk.{module.split('.')[1]}.{names[module.split('.', 2)[2]]}"
            tensor = tensor.T.contiguous() if name.endswith(LINEAR) else tensor
            half = kind == "F16" and tensor.dim() == 2
            held[name] = tensor.half().float() if half else tensor
            writer.add_tensor(f"{target}.{parameter}", tensor.half().numpy() if half else tensor.numpy())
        writer.write_header_to_file(folder / "m.gguf" if parts else None)
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        rounded = model_of()
        rounded.load_state_dict({n: t.T if n.endswith(LINEAR) else t for n, t in held.items()}, strict=False)
        files = sorted(folder.glob("*.gguf"))
        yield f"gguf, {kind}" + (f", {len(files)} parts" if parts else ""), files[-1], logits(rounded)
        if kind == "F32" and not parts and os.environ.get("GGUF_SPLIT"):
            split = root / "split"
            split.mkdir()
            subprocess.run([os.environ["GGUF_SPLIT"], "--split", "--split-max-tensors", "9", files[0], split / "m"], check=True, capture_output=True)
            for part in sorted(split.glob("*.gguf")):
                yield f"llama-gguf-split, {part.name}", part, logits(rounded)


def by_hand(root):
    """nanoGPT's and llm.c's."""
    import make_brought_reference as brought

    (root / "nano").mkdir()
    expected = brought.nano_gpt(root / "nano" / "ckpt.pt")[0]
    yield "nanoGPT's ckpt.pt", root / "nano" / "ckpt.pt", expected
    model = brought.whole_model()
    (root / "llmc").mkdir()
    brought.llm_c(root / "llmc" / "gpt2_124M.bin", model.state_dict())
    with torch.no_grad():
        yield "llm.c's gpt2_124M.bin", root / "llmc" / "gpt2_124M.bin", model(torch.arange(brought.N)[None]).logits[0]


READ = [heads, wrapped, lightning, value_head, numbers, checkpoints, merged, ggufs, by_hand]


# --- kinds that are refused: each row has what --model is given, and words of the message ----------------------------------------


def architectures(root):
    """Tiny models of other architectures, named by their type."""
    tiny = dict(vocab_size=101, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
    kinds = {
        "OPT": dict(tiny, ffn_dim=64, word_embed_proj_dim=32),
        "Bloom": dict(vocab_size=101, hidden_size=32, n_layer=1, n_head=2),
        "GPTNeoX": tiny,
        "GPTNeo": dict(vocab_size=101, hidden_size=32, num_layers=1, num_heads=2, attention_types=[[["global"], 1]]),
        "GPTJ": dict(vocab_size=101, n_embd=32, n_layer=1, n_head=2, rotary_dim=4),
        "CodeGen": dict(vocab_size=101, n_embd=32, n_layer=1, n_head=4, rotary_dim=4),
        "Llama": tiny,
        "Mistral": dict(tiny, num_key_value_heads=2),
        "Gemma": dict(tiny, num_key_value_heads=2, head_dim=16),
        "Qwen2": dict(tiny, num_key_value_heads=2),
        "Phi": tiny,
        "Falcon": tiny,
        "T5": dict(vocab_size=101, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=2),
        "Bert": tiny,
        "Roberta": tiny,
        "OpenAIGPT": dict(vocab_size=101, n_embd=32, n_layer=1, n_head=2),
        "ImageGPT": dict(vocab_size=101, n_embd=32, n_layer=1, n_head=2),
        "Mamba": dict(vocab_size=101, hidden_size=32, num_hidden_layers=1),
        "XLNet": dict(vocab_size=101, d_model=32, n_layer=1, n_head=2, d_inner=64),
        "CTRL": dict(vocab_size=101, n_embd=32, n_layer=1, n_head=2, dff=64),
    }
    for name, options in kinds.items():
        config = getattr(transformers, f"{name}Config", None)
        if config is None:
            continue
        config = config(**options)
        model = transformers.AutoModel.from_config(config)
        model.save_pretrained(root / name)
        yield name, root / name, [config.model_type, "model_type"]
        untyped = root / f"{name}-untyped"  # its tensors under a config that says nothing
        shutil.copytree(root / name, untyped)
        kept = {"vocab_size": 101, "n_embd": 32, "n_layer": 1, "n_head": 2}
        (untyped / "config.json").write_text(json.dumps(kept))
        yield f"{name}'s tensors as GPT-2's", untyped, []


def other_files(root):
    """Sound files that hold no state dictionary."""
    model = model_of()
    yield "a whole pickled module", pickled(model, root / "module", model), ["pickle"]
    traced = torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2))
    config_of(model, root / "script")
    traced.save(root / "script" / "pytorch_model.bin")
    yield "TorchScript", root / "script", ["TorchScript"]
    exported = torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),))
    config_of(model, root / "export")
    torch.export.save(exported, root / "export" / "pytorch_model.bin")
    yield "torch.export", root / "export", []
    sparse = {k: v.to_sparse() if v.dim() == 2 else v for k, v in model.state_dict().items()}
    yield "sparse tensors", pickled(model, root / "sparse", sparse), ["sparse"]
    quantized = {k: torch.quantize_per_tensor(v, 0.1, 0, torch.qint8) if v.dim() == 2 else v for k, v in model.state_dict().items()}
    yield "quantized tensors", pickled(model, root / "qint8", quantized), ["quantized"]
    yield "the optimizer's state", pickled(model, root / "optimizer", torch.optim.AdamW(model.parameters()).state_dict()), []
    two = {"student": model.state_dict(), "teacher": model_of().state_dict()}
    yield "two models in one file", pickled(model, root / "two", two), ["several models", "`student`, `teacher`"]
    float8 = {k: v.to(torch.float8_e4m3fn) if v.dim() == 2 else v.clone() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    config_of(model, root / "float8")
    save_file(float8, root / "float8" / "model.safetensors")
    yield "float8", root / "float8", ["F8_E4M3"]
    integers = {k: v.to(torch.int8) if v.dim() == 2 else v.clone() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    config_of(model, root / "int8")
    save_file(integers, root / "int8" / "model.safetensors")
    yield "int8", root / "int8", ["I8"]
    complexes = {k: v.to(torch.complex64) for k, v in model.state_dict().items()}
    yield "complex numbers", pickled(model, root / "complex", complexes), []


def adapters_in(root):
    import peft

    model = peft.get_peft_model(model_of(), peft.LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False))
    yield "PEFT's layers inside", pickled(model.base_model.model, root / "inside", model.state_dict()), ["merge_and_unload"]
    model.save_pretrained(root / "adapter")
    yield "an adapter as a model", root / "adapter", ["adapter"]


def distributed(root):
    import torch.distributed.checkpoint as dcp

    model = model_of()
    config_of(model, root / "dcp")
    dcp.save({"model": model.state_dict()}, checkpoint_id=root / "dcp")
    yield "torch.distributed.checkpoint", root / "dcp", ["no weights here"]


REFUSED = [architectures, other_files, adapters_in, distributed]


# --- the table ------------------------------------------------------------------------------------------------------------------


def run(gpt2, model, ids, scratch):
    file = scratch / "export.safetensors"
    file.unlink(missing_ok=True)
    command = [gpt2, "forward", "--model", model, "--ids", ",".join(map(str, ids)), "--export", file]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    found = load_file(file)["logits"].reshape(len(ids), -1) if done.returncode == 0 else None
    return done.returncode, done.stderr.replace(str(scratch), ""), found


def row_read(gpt2, name, model, expected, scratch):
    ids = IDS if expected.shape[0] == len(IDS) else range(expected.shape[0])
    code, said, found = run(gpt2, model, list(ids), scratch)
    notes = "; ".join(line for line in said.splitlines() if not line.startswith("for GPT-2"))[:170]
    if code != 0 or found.shape != expected.shape:
        return False, f"{name:<44} FAILED  exit {code}: {notes}"
    error = ((found - expected).abs().max() / expected.abs().max()).item()
    return error <= TOLERANCE, f"{name:<44} {error:9.1e}  {notes}"


def row_refused(gpt2, name, model, words, scratch):
    code, said, _ = run(gpt2, model, IDS, scratch)
    line = said.split("error: ", 1)[-1].replace("\n", " ")
    lacks = [word for word in words if word not in said]
    good = code == 1 and not lacks and "damaged" not in said and "fetch" not in said and said.count("\n") < 30
    return good, f"{name:<44} {'refused' if good else f'exit {code}, lacks {lacks}'}  {line[:300]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--gpt2", type=Path, default=ROOT / "target/release/gpt2", help="the binary to test")
    parser.add_argument("--keep", type=Path, help="leave the files in this folder")
    given = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    bad = rows = 0
    with tempfile.TemporaryDirectory() as scratch:
        scratch = given.keep or Path(scratch)
        for makers, check, title in ((READ, row_read, "read"), (REFUSED, row_refused, "refused")):
            print(f"\n{title}")
            for make in makers:
                root = scratch / title / make.__name__
                root.mkdir(parents=True)
                try:
                    for name, model, expected in make(root):
                        if given.words and not any(word in name for word in given.words):
                            continue
                        good, text = check(given.gpt2, name, model, expected, scratch)
                        rows += 1
                        bad += not good
                        print(text + ("" if good else "   <<<"), flush=True)
                except ImportError as error:
                    print(f"{make.__name__:<44} LEFT OUT  {error}")
    print(f"\n{rows - bad} of {rows} as expected")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
