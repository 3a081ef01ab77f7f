#!/usr/bin/env python3
"""Time and memory of a training step of an adapter, beside PEFT with PyTorch, in turn.

    cargo build --release
    python scripts/bench_lora.py [--rounds 3] [--batch 4] [--tokens 256] [--rank 8]

GPT-2 medium's shape with random weights; updates of all linear layers of the blocks; dropout at the config's rates, AdamW, gradients
clipped. Each round runs our f32 base, our q8_0 base and PEFT, each in a process of its own for three steps, of which the first
warms up. Prints the median of the steps and the most memory that a process took.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from bench.processes import Failure, run, write_gpt2
from bench.side import milliseconds

SCRIPT = Path(__file__).resolve()
DEMO = SCRIPT.parent.parent / "models/tiny-shakespeare"
STEPS = 3
TARGETS = ["c_attn", "c_proj", "c_fc"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--gpt2", default="target/release/gpt2", help="the binary")
    parser.add_argument("--dry-run", action="store_true", help="our side in every row, with the demo model: do the commands run?")
    parser.add_argument("--peft", help=argparse.SUPPRESS)  # a process of PEFT's side, on this model
    args = parser.parse_args()
    if args.peft:
        return peft_steps(args)
    with tempfile.TemporaryDirectory() as scratch:
        model = DEMO if args.dry_run else write_gpt2(Path(scratch) / "medium", n_embd=1024, n_layer=24, n_head=16)
        own = [args.gpt2, "--quiet", "bench", "train", "--lora", args.rank, "--model", model, "--batch", args.batch]
        own += ["--tokens", args.tokens, "--runs", STEPS - 1, "--threads", args.threads, "--json"]
        sides = {
            "f32": own,
            "q8_0": own + ["--quantize", "q8_0"],
            "PEFT": [sys.executable, SCRIPT, "--peft", model, *options(args)],
        }
        if args.dry_run:
            sides["PEFT"] = sides["f32"]
        seconds, memory = {name: [] for name in sides}, dict.fromkeys(sides, 0.0)
        for _ in range(args.rounds):
            for name, command in sides.items():
                done = run(*command)
                seconds[name].append(json.loads(done.stdout)["median_ms"] / 1e3)
                memory[name] = max(memory[name], done.peak_bytes / 1e9)
        print(f"{'':6} {'s a step':>9} {'GB':>6}  of PEFT's time, memory")
        for name in sides:
            ratios = [ours / theirs for ours, theirs in zip(seconds[name], seconds["PEFT"])]
            step, part = statistics.median(seconds[name]), memory[name] / memory["PEFT"]
            print(f"{name:6} {step:9.2f} {memory[name]:6.2f}  {statistics.median(ratios):.2f}, {part:.2f}")


def options(args: argparse.Namespace) -> list[object]:
    return ["--batch", args.batch, "--tokens", args.tokens, "--rank", args.rank, "--threads", args.threads]


def peft_steps(args: argparse.Namespace) -> None:
    import peft
    import torch
    from transformers import GPT2LMHeadModel

    torch.set_num_threads(args.threads)
    base = GPT2LMHeadModel.from_pretrained(args.peft, attn_implementation="sdpa", dtype=torch.float32)
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=args.rank, fan_in_fan_out=True, target_modules=TARGETS)
    model = peft.get_peft_model(base, config).train()
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=1e-3)
    ids = (torch.arange(args.batch * args.tokens) * 7919 % base.config.vocab_size).reshape(args.batch, args.tokens)

    def step() -> None:
        model(ids, labels=ids, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(learning, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    print(json.dumps({"median_ms": statistics.median(milliseconds(step, STEPS - 1))}))


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(str(failure))
