#!/usr/bin/env python3
"""Time and memory of attribution patching beside TransformerLens, and of hooks that read everything beside a plain pass.

    cargo build --release
    python scripts/bench_circuits.py [--rounds 5] [--tokens 64]

One checkpoint of GPT-2 small's shape with random weights, f32. Each round runs the binary and TransformerLens in turn, each in a
process of its own. Attribution patching is of every head, residual stream, attention block and MLP, from two forward passes and
one backward pass; reading everything records each hook point of a forward pass. Prints the medians, and our time divided by theirs.
Needs torch and transformer_lens 2.18 (its HookedTransformer without processing of the weights).
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from bench.processes import Failure, run, write_gpt2
from bench.side import milliseconds
from hooked_transformer import hooked

SCRIPT = Path(__file__).resolve()
DEMO = SCRIPT.parent.parent / "models/tiny-shakespeare"
RUNS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--gpt2", default="target/release/gpt2", help="the binary")
    parser.add_argument("--dry-run", action="store_true", help="our side in both columns, with the demo model: do the commands run?")
    parser.add_argument("--lens", nargs=2, metavar=("WHAT", "MODEL"), help=argparse.SUPPRESS)  # TransformerLens' process
    args = parser.parse_args()
    if args.lens:
        return lens(*args.lens, args.tokens, args.threads)
    with tempfile.TemporaryDirectory() as scratch:
        model = DEMO if args.dry_run else write_gpt2(Path(scratch) / "small")
        own = [args.gpt2, "--quiet", "bench"]
        options = ["--model", model, "--tokens", args.tokens, "--threads", args.threads, "--runs", RUNS, "--json"]
        theirs = [sys.executable, SCRIPT, "--tokens", args.tokens, "--threads", args.threads, "--lens"]
        pairs = {
            "attribution patching": ([*own, "attribution", *options], [*theirs, "attribution", model]),
            "reading every hook": ([*own, "forward", "--hooks", *options], [*theirs, "hooks", model]),
        }
        if args.dry_run:
            pairs = {name: (ours, ours) for name, (ours, _) in pairs.items()}
        print(f"{'':22} {'ms':>8} {'GB':>6} {'theirs':>8} {'GB':>6}  ours / theirs")
        for name, commands in pairs.items():
            rounds = [[measured(command) for command in commands] for _ in range(args.rounds)]
            ours, others = ([side[i][0]["median_ms"] for side in rounds] for i in (0, 1))
            memory = [max(side[i][1] for side in rounds) for i in (0, 1)]
            ratio = statistics.median(a / b for a, b in zip(ours, others))
            ours, others = statistics.median(ours), statistics.median(others)
            print(f"{name:22} {ours:8.1f} {memory[0]:6.2f} {others:8.1f} {memory[1]:6.2f}  {ratio:.2f}")
            for i, side in enumerate(("ours", "TransformerLens")):
                reports = [pair[i][0] for pair in rounds]
                if "ratio_to_plain" in reports[0]:
                    part = statistics.median(report["ratio_to_plain"] for report in reports)
                    print(f"  {side}: {part:.2f} of a plain pass")


def measured(command: list[object]) -> tuple[dict, float]:
    """What the process printed, and the most memory that it took, in GB."""
    done = run(*command)
    return json.loads(done.stdout), done.peak_bytes / 1e9


def lens(what: str, folder: str, tokens: int, threads: int) -> None:
    import torch
    from transformers import GPT2LMHeadModel

    torch.set_num_threads(threads)
    model = hooked(GPT2LMHeadModel.from_pretrained(folder))
    ids = torch.randint(model.cfg.d_vocab, (1, 2 * tokens), generator=torch.Generator().manual_seed(0))
    clean, corrupt = ids[:, :tokens], ids[:, tokens:]
    if what == "attribution":
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        times = milliseconds(lambda: attribution(model, clean, corrupt), RUNS)
        return print(json.dumps({"median_ms": statistics.median(times)}))
    model.set_use_attn_result(True)
    model.set_use_split_qkv_input(True)
    model.set_use_hook_mlp_in(True)
    with torch.no_grad():
        everything = statistics.median(milliseconds(lambda: model.run_with_cache(clean), RUNS))
        model.set_use_attn_result(False)
        model.set_use_split_qkv_input(False)
        model.set_use_hook_mlp_in(False)
        plain = statistics.median(milliseconds(lambda: model(clean), RUNS))
    print(json.dumps({"median_ms": everything, "ratio_to_plain": everything / plain}))


def attribution(model, clean, corrupt) -> dict:
    import torch

    sites = ("attn.hook_z", "hook_resid_pre", "hook_attn_out", "hook_mlp_out")
    names = [f"blocks.{layer}.{site}" for site in sites for layer in range(model.cfg.n_layers)]
    with torch.no_grad():
        _, cache = model.run_with_cache(clean, names_filter=lambda name: name in names)
    kept = {}

    def keep(value, hook):
        # The first of them starts the graph, since no weight needs a gradient.
        value = value if value.requires_grad else value.detach().requires_grad_()
        value.retain_grad()
        kept[hook.name] = value
        return value

    logits = model.run_with_hooks(corrupt, fwd_hooks=[(name, keep) for name in names])
    (logits[0, -1, 0] - logits[0, -1, 1]).backward()
    return {name: ((cache[name] - kept[name].detach()) * kept[name].grad).sum(-1) for name in names}


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(str(failure))
