"""LoRA adapters both ways between this project and PEFT: those trained here give the same logits in PEFT, those that PEFT
writes give the same logits here, and merged models load in transformers. On the demo model and on GPT-2 small's shape.

Run it from the repository's root after `cargo build --release`, with scripts/requirements.txt installed. It prints the largest
difference of the logits, and fails above 3e-5 (1e-5 between merged and not), relative to the largest logit."""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import peft
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from reference.lora import adapted
from reference.models import randomize

DEMO = Path("models/tiny-shakespeare")
TOLERANCE, MERGED = 3e-5, 1e-5
OPTIONS: dict[str, dict] = {
    "PEFT's default": dict(),
    "every layer, rank-stabilized": dict(target_modules=["c_attn", "c_proj", "c_fc"], r=16, lora_alpha=32, use_rslora=True),
    "a regex": dict(target_modules=r".*\.attn\.(c_attn|c_proj)", r=4),
    "one block, other ranks": dict(target_modules=["c_attn", "c_fc"], layers_to_transform=[1], rank_pattern={"c_fc": 2}),
    "whole modules": dict(target_modules=["c_attn"], modules_to_save=["ln_f", "wte"]),
    "trained biases": dict(target_modules=["c_attn"], bias="all"),
    "biases of layers": dict(target_modules=["c_attn", "mlp.c_proj"], bias="lora_only"),
    "embeddings": dict(target_modules=["wte", "wpe"]),
    "the head": dict(target_modules=["lm_head"]),
    "a model without a head": dict(target_modules=["c_attn"], layers_to_transform=[0], layers_pattern="h", task_type=None),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpt2", default="target/release/gpt2", help="the binary")
    args = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        small = scratch / "small"
        model = GPT2LMHeadModel(GPT2Config(attn_implementation="eager"))
        torch.manual_seed(1)
        randomize(model, 1)
        model.save_pretrained(small)
        text = scratch / "text.txt"
        text.write_text("The quick brown fox jumps over the lazy dog. " * 400)
        for name, base in (("demo", DEMO), ("GPT-2 small's shape", small)):
            good &= compare(args.gpt2, name, base, text, scratch / name.split()[0])
    return 0 if good else 1


def compare(gpt2: str, name: str, base: Path, text: Path, scratch: Path) -> bool:
    scratch.mkdir()
    vocabulary = GPT2Config.from_pretrained(base).vocab_size
    ids = torch.randint(vocabulary, (1, 20), generator=torch.Generator().manual_seed(2))
    good = True

    ours = scratch / "ours"
    run(gpt2, "train", "--model", base, "--text", text, "--out", ours, "--lora", "8", "--lora-target", "c_attn,c_proj,c_fc",
        "--steps", "3", "--lr", "0.05", "--warmup", "0", "--window", "32", "--batch", "2", "--val-fraction", "0.2")
    loaded = peft.PeftModel.from_pretrained(load(base), ours).eval()
    good &= report(f"{name}: trained here, in PEFT", logits(loaded, ids), here(gpt2, base, ids, scratch, ours), TOLERANCE)
    good &= differs(logits(loaded, ids), logits(load(base), ids))
    good &= merged(gpt2, f"{name}: trained here", base, ours, ids, scratch / "merged")

    for number, (what, options) in enumerate(OPTIONS.items()):
        folder = scratch / f"peft-{number}"
        is_bare = options.get("task_type", "") is None
        model = adapted(load(base).transformer if is_bare else load(base), 7 + number, size=0.1, **options)
        model.save_pretrained(folder)
        theirs = logits(with_head(model, base) if is_bare else model, ids)
        good &= report(f"{name}: {what}, here", theirs, here(gpt2, base, ids, scratch, folder), TOLERANCE)
        good &= differs(theirs, logits(load(base), ids))
        good &= merged(gpt2, f"{name}: {what}", base, folder, ids, scratch / f"merged-{number}")
    return good


def merged(gpt2: str, name: str, base: Path, adapter: Path, ids: Tensor, out: Path) -> bool:
    """Whether the merged model loads in transformers, and gives the unmerged one's logits."""
    run(gpt2, "merge", "--model", base, "--adapter", adapter, "--out", out)
    model, info = GPT2LMHeadModel.from_pretrained(out, output_loading_info=True, attn_implementation="eager")
    complete = not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    unmerged = here(gpt2, base, ids, out, adapter)
    return report(f"{name}, merged, in transformers", logits(model.eval(), ids), unmerged, MERGED) and complete


def load(base: Path) -> GPT2LMHeadModel:
    return GPT2LMHeadModel.from_pretrained(base, attn_implementation="eager", dtype=torch.float32).eval()


def with_head(adapted: peft.PeftModel, base: Path) -> GPT2LMHeadModel:
    """The base with the adapted model in the place of its own."""
    whole = load(base)
    whole.transformer = adapted.base_model.model
    return whole


@torch.no_grad()
def logits(model: torch.nn.Module, ids: Tensor) -> Tensor:
    return model(ids).logits[0]


def here(gpt2: str, base: Path, ids: Tensor, scratch: Path, adapter: Path) -> Tensor:
    file = scratch / "forward.safetensors"
    prompt = ",".join(map(str, ids[0].tolist()))
    run(gpt2, "forward", "--model", base, "--adapter", adapter, "--ids", prompt, "--export", file, "--overwrite")
    return load_file(file)["logits"].reshape(ids.shape[1], -1)


def run(gpt2: str, *arguments: object) -> None:
    command = [gpt2, "--quiet", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")


def report(what: str, expected: Tensor, got: Tensor, tolerance: float) -> bool:
    error = ((got - expected).abs().max() / expected.abs().max()).item()
    print(f"{error:9.1e}  {what}" + ("" if error <= tolerance else f"   ABOVE {tolerance:.0e}"), flush=True)
    return error <= tolerance


def differs(one: Tensor, other: Tensor) -> bool:
    """Whether the adapter changes anything, without which agreement would say nothing."""
    return (one - other).abs().max().item() > 0.01


if __name__ == "__main__":
    sys.exit(main())
