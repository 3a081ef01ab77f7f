#!/usr/bin/env python3
"""Compare the `gpt2` binary with transformers, end to end, on every kind of checkpoint.

    cargo build --release && cargo build --release -p gpt2-loader --example resave
    python scripts/compare_with_transformers.py [--quick]

Writes random checkpoints to a temporary folder and runs `gpt2 forward` and `gpt2 attention` on each;
their exports must agree with transformers (eager, f32) within 3e-5. Then a checkpoint from our own
`save` must load in transformers with no missing or unexpected key, and give the same bits. Beam searches after 50 prompts must
find the same texts with the same scores. Exits 1 if anything disagrees.
"""

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing here needs the network

import safetensors.torch
import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, GPT2LMHeadModel, PreTrainedModel

from bench.rows import GPT2_SMALL
from make_reference import ODD, ODD_LENGTHS, mask_buffers, save_pickle
from reference.models import build_model, random_ids, save_checkpoint
from reference.bigcode_cross import build_bigcode

ROOT = Path(__file__).resolve().parent.parent
TOLERANCE = 3e-5
EXPORTS = {"forward": ("logits", "hidden_states"), "attention": ("attentions", "attention_outputs")}
COLUMNS = [name for names in EXPORTS.values() for name in names]


# --- checkpoints --------------------------------------------------------------------------


def write_tensors(model: GPT2LMHeadModel, folder: Path, tensors: dict[str, Tensor]) -> Path:
    """A checkpoint folder with exactly these tensors; returns its model.safetensors."""
    model.config.save_pretrained(folder)
    file = folder / "model.safetensors"
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    safetensors.torch.save_file(copies, file, metadata={"format": "pt"})
    return file


def misalign(file: Path) -> None:
    """Lengthen the header with spaces, as the format allows, until the data begins at 4n + 3.

    GPT-2's own file is such a one: its data begins at byte 14,291.
    """
    content = file.read_bytes()
    data = 8 + int.from_bytes(content[:8], "little")
    header = content[8:data]
    header += b" " * ((3 - data) % 4)
    file.write_bytes(len(header).to_bytes(8, "little") + header + content[data:])
    assert (8 + len(header)) % 4 == 3


def write_pickle(model: GPT2LMHeadModel, folder: Path, state: dict[str, Tensor], **options: object) -> None:
    model.config.save_pretrained(folder)
    torch.save(state, folder / "pytorch_model.bin", **options)


def write_sharded_pickles(model: GPT2LMHeadModel, folder: Path) -> None:
    """Two shards and their index, as transformers 4 wrote them."""
    model.config.save_pretrained(folder)
    state = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    names = list(state)
    files = {}
    for number, part in enumerate((names[:9], names[9:]), 1):
        file = f"pytorch_model-{number:05}-of-00002.bin"
        torch.save({name: state[name].clone() for name in part}, folder / file)
        files |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 0}, "weight_map": files}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


def write_kinds(root: Path) -> Iterator[tuple[str, Path]]:
    """One folder for each form that GPT-2's weights come in: (its name, its path)."""
    model = build_model(seed=1, **ODD)
    config = model.config
    tensors = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}

    def folder(name: str) -> Path:
        return root / name.replace(" ", "-")

    name = "as saved"
    save_checkpoint(model, folder(name))
    yield name, folder(name)

    name = "no prefix"
    write_tensors(model, folder(name), {k.removeprefix("transformer."): v for k, v in tensors.items()})
    yield name, folder(name)

    for dtype in (torch.float32, torch.uint8, torch.bool):
        name = f"{dtype} buffers".removeprefix("torch.")
        write_tensors(model, folder(name), tensors | mask_buffers(config, dtype))
        yield name, folder(name)

    name = "sharded"
    model.save_pretrained(folder(name), max_shard_size="60KB")
    assert (folder(name) / "model.safetensors.index.json").exists()
    assert len(list(folder(name).glob("model-*.safetensors"))) > 2
    yield name, folder(name)

    name = "pickle"
    save_pickle(model, folder(name), torch.uint8)
    yield name, folder(name)

    name = "untied"
    save_checkpoint(build_model(seed=2, tie_word_embeddings=False, **ODD), folder(name))
    yield name, folder(name)

    name = "lm_head only"
    others = {k: v for k, v in tensors.items() if k != "transformer.wte.weight"}
    write_tensors(model, folder(name), others | {"lm_head.weight": tensors["transformer.wte.weight"]})
    yield name, folder(name)

    name = "sharded pickles"
    write_sharded_pickles(model, folder(name))
    yield name, folder(name)

    name = "old pickle"  # as before PyTorch 1.6
    write_pickle(model, folder(name), model.state_dict(), _use_new_zipfile_serialization=False)
    yield name, folder(name)

    name = "strided"
    strided = {k: t.T.contiguous().T if t.dim() == 2 else t for k, t in model.state_dict().items()}
    write_pickle(model, folder(name), strided)
    yield name, folder(name)

    name = "protocol 4"
    write_pickle(model, folder(name), model.state_dict(), pickle_protocol=4)
    yield name, folder(name)

    name = "misaligned"
    misalign(write_tensors(model, folder(name), tensors))
    yield name, folder(name)

    for name, multi_query in (("bigcode", True), ("bigcode heads", False)):
        save_checkpoint(build_bigcode(seed=4, multi_query=multi_query, **ODD), folder(name))
        yield name, folder(name)

    name = "cross-attention"  # without an encoder; with one: tests/model/cross_attention.rs
    save_checkpoint(build_model(seed=5, add_cross_attention=True, **ODD), folder(name))
    yield name, folder(name)


# --- transformers -------------------------------------------------------------------------


def load(folder: Path, ignore: str | None = None) -> PreTrainedModel:
    """The checkpoint as transformers reads it, with every key accounted for (but `ignore`). PyTorch itself reads a pickle that needs code
    to run, with exactly the model's keys."""
    try:
        model, info = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", output_loading_info=True)
    except pickle.UnpicklingError:  # PyTorch 2.11 reads protocol 4 only if it may run code
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), attn_implementation="eager")
        model.load_state_dict(torch.load(folder / "pytorch_model.bin", weights_only=False))
        return model.eval()
    unexpected = [key for key in info["unexpected_keys"] if ignore is None or not key.endswith(ignore)]
    problems = {"missing": info["missing_keys"], "mismatched": info["mismatched_keys"], "unexpected": unexpected}
    for problem, keys in problems.items():
        assert not keys, f"{folder.name}: {problem} keys {sorted(keys)}"
    for parameter in model.parameters():  # copy out of the memory map, whose alignment can change the last bit
        parameter.data = parameter.data.clone()
    return model.eval()


@torch.no_grad()
def transformers_result(model: PreTrainedModel, ids: Tensor) -> dict[str, Tensor]:
    attention_outputs: list[Tensor] = []
    hooks = [
        block.attn.register_forward_hook(lambda _module, _inputs, output: attention_outputs.append(output[0]))
        for block in model.transformer.h
    ]
    output = model(ids, output_hidden_states=True, output_attentions=True, use_cache=False)
    for hook in hooks:
        hook.remove()
    return {
        "logits": output.logits,  # (1, T, V)
        "hidden_states": torch.cat(output.hidden_states),  # (L+1, T, C)
        "attentions": torch.cat(output.attentions),  # (L, H, T, T)
        "attention_outputs": torch.cat(attention_outputs),  # (L, T, C)
    }


# --- the binary ---------------------------------------------------------------------------


def run(*command: object) -> None:
    """Runs from the repository root; a failure includes the last line of stderr."""
    done = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise RuntimeError(f"exit status {done.returncode}: {lines[-1]}")


def gpt2_result(gpt2: Path, folder: Path, ids: Tensor) -> dict[str, Tensor]:
    listed = ",".join(str(i) for i in ids[0].tolist())
    result = {}
    for command, names in EXPORTS.items():
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "export.safetensors"
            run(gpt2, command, "--model", folder, "--ids", listed, "--export", file)
            exported = safetensors.torch.load(file.read_bytes())
        for name in names:
            if name not in exported:
                raise RuntimeError(f"gpt2 {command} exported {sorted(exported)}, but no {name}")
            result[name] = exported[name]
    return result


def relative_error(found: Tensor, expected: Tensor) -> float:
    """max|a-b| / max|b|, the worst over the layers, so that a large layer hides no small one."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        raise RuntimeError(
            f"exported {found.dtype} {tuple(found.shape)}, expected {expected.dtype} {tuple(expected.shape)}"
        )
    difference = (found - expected).abs().flatten(1).amax(1)
    return (difference / expected.abs().flatten(1).amax(1)).max().item()  # NaN stays NaN


def compare(gpt2: Path, name: str, folder: Path, length: int) -> bool:
    """One row of the table; true if all four tensors agree."""
    model = load(folder, ignore=".attn.masked_bias")  # transformers knows attn.bias, but not this one
    ids = random_ids(seed=length, batch=1, length=length, vocab_size=model.config.vocab_size)
    expected = transformers_result(model, ids)
    print(f"{name:<16}{length:>5}", end="", flush=True)
    try:
        found = gpt2_result(gpt2, folder, ids)
        errors = [relative_error(found[column], expected[column]) for column in COLUMNS]
    except (RuntimeError, OSError, safetensors.SafetensorError) as error:
        print(f"  FAILED  {error}")
        return False
    good = all(error <= TOLERANCE for error in errors)  # false for NaN too
    print("".join(f"{error:>19.1e}" for error in errors) + ("  ok" if good else "  BREACH"))
    return good


# --- the way back -------------------------------------------------------------------------


def round_trip(resave: list[object], name: str, source: Path, scratch: Path, buffers: bool) -> bool:
    """Loads and saves a checkpoint with our code; transformers must find the same model in both."""
    label = f"{name}, {'with' if buffers else 'without'} buffers"
    target = scratch / label.replace(", ", "-").replace(" ", "-")
    try:
        run(*resave, source, target, *(["--buffers"] if buffers else []))
        saved = safetensors.torch.load_file(target / "model.safetensors")
        masks = [tensor for key, tensor in saved.items() if key.endswith(".attn.bias")]
        before, after = load(source), load(target)
        n, layers = before.config.n_positions, before.config.n_layer
        assert len(masks) == (layers if buffers else 0), f"{len(masks)} attn.bias tensors"
        for mask in masks:
            assert torch.equal(mask.bool(), torch.ones(n, n).tril().bool().view(1, 1, n, n)), "attn.bias is not tril"
        ids = random_ids(seed=n, batch=1, length=n, vocab_size=before.config.vocab_size)
        a, b = transformers_result(before, ids)["logits"], transformers_result(after, ids)["logits"]
        assert torch.equal(a, b), f"logits differ by {(a - b).abs().max().item():.1e}"
    except (AssertionError, RuntimeError, OSError, safetensors.SafetensorError) as error:
        print(f"{label:<32}  FAILED  {error}")
        return False
    print(f"{label:<32}  ok: same keys, same bits")
    return True


def compare_beams(gpt2: Path, folder: Path) -> bool:
    """Beam searches after 50 prompts, with five sets of options in turn."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    kinds = [dict(), dict(length_penalty=2.0), dict(length_penalty=-0.5), dict(early_stopping=True), dict(repetition_penalty=1.2)]
    wrong, error = 0, 0.0
    for n in range(50):
        prompt, options = random_ids(900 + n, 1, 2 + n % 20, ODD["vocab_size"]), kinds[n % 5]
        beams = 2 + n % 4
        theirs = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), num_beams=beams, num_return_sequences=beams, max_new_tokens=24,
            do_sample=False, pad_token_id=ODD["vocab_size"], output_scores=True, return_dict_in_generate=True, **options,
        )  # fmt: skip
        ids = ",".join(map(str, prompt[0].tolist()))
        flags = [f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}") for name, value in options.items()]
        command = [gpt2, "generate", "--model", folder, "--ids", ids, "--beams", str(beams), "-n24", "--json", "-q", *flags]
        ours = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["hypotheses"]
        new = theirs.sequences[:, prompt.shape[1] :]
        texts = [[i for i in row.tolist() if i < ODD["vocab_size"]] for row in new]
        wrong += [one["ids"] for one in ours] != texts
        scores = torch.tensor([one["score"] for one in ours])
        error = max(error, ((scores - theirs.sequences_scores) / theirs.sequences_scores.abs()).abs().max().item())
    print(f"\nbeam search: {50 - wrong} of 50 prompts give the same texts; scores differ by {error:.1e}")
    return wrong == 0 and error <= TOLERANCE


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpt2", type=Path, default=ROOT / "target/release/gpt2", help="the binary to test")
    parser.add_argument(
        "--resave",
        type=Path,
        default=ROOT / "target/release/examples/resave",
        help="the built example `resave` (default: cargo builds and runs it)",
    )
    parser.add_argument("--quick", action="store_true", help="leave out the checkpoint of GPT-2 small's size")
    args = parser.parse_args()
    gpt2, resave = args.gpt2.resolve(), args.resave.resolve()
    if not gpt2.exists():
        parser.error(f"{gpt2} does not exist; `cargo build --release` makes it")

    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # `load` checks what its report would say
    good = True
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        kinds = dict(write_kinds(root))
        print(f"{'case':<16}{'T':>5}" + "".join(f"{column:>19}" for column in COLUMNS) + f"  <= {TOLERANCE}")
        for name, folder in kinds.items():
            for length in ODD_LENGTHS if name == "as saved" else (33,):
                good &= compare(gpt2, name, folder, length)
        if not args.quick:
            save_checkpoint(build_model(seed=3, **GPT2_SMALL), root / "small")
            good &= compare(gpt2, "GPT-2 small", root / "small", length=300)

        good &= compare_beams(gpt2, kinds["as saved"])
        print("\nround trip through our own save")
        command = [resave] if resave.exists() else "cargo run --release -q -p gpt2-loader --example resave --".split()
        for name in ("as saved", "untied"):
            for buffers in (False, True):
                good &= round_trip(command, name, kinds[name], root, buffers)
        for name in ("bigcode", "bigcode heads", "cross-attention"):
            good &= round_trip(command, name, kinds[name], root, buffers=False)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
