#!/usr/bin/env python3
"""Time of gpt2 discover beside the code of EAP-IG (Hanna et al. 2024), which runs on TransformerLens.

    cargo build --release
    git clone https://github.com/hannamw/EAP-IG /tmp/eap-ig
    python3 -m venv /tmp/tl2 && /tmp/tl2/bin/pip install torch==2.11.0 transformer_lens==2.18.0 pyarrow==21.0.0 matplotlib
    /tmp/tl2/bin/python scripts/bench_discovery.py --eap-ig /tmp/eap-ig [--pairs 16] [--tokens 64] [--rounds 3]

One checkpoint of GPT-2 small's shape with random weights, f32, pairs of random tokens. Each round runs both in turn, each in a process
of its own: scores of all edges with 5 steps of integrated gradients on the inputs, and the runs of ten circuits of growing size.
Prints the fastest of each, the medians, and our time divided by theirs. Their device "cuda" is replaced by "cpu".
"""

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench.processes import run, write_gpt2

SCRIPT = Path(__file__).resolve()
STEPS = 5
SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
DEMO = SCRIPT.parent.parent / "models/tiny-shakespeare"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8, help="pairs that EAP-IG takes at a time")
    parser.add_argument("--gpt2", default="target/release/gpt2", help="the binary")
    parser.add_argument("--eap-ig", metavar="FOLDER", help="a checkout of EAP-IG; without it, our side alone")
    parser.add_argument("--dry-run", action="store_true", help="our side alone, with the demo model: does the command run?")
    parser.add_argument("--theirs", nargs=2, metavar=("MODEL", "PAIRS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.theirs:
        return theirs(args, *args.theirs)
    with tempfile.TemporaryDirectory() as scratch:
        model, vocabulary = (DEMO, 1024) if args.dry_run else (write_gpt2(Path(scratch) / "small"), 50257)
        pairs = Path(scratch) / "pairs.jsonl"
        pairs.write_text("".join(json.dumps(pair) + "\n" for pair in random_pairs(args.pairs, args.tokens, vocabulary)))
        # Ten circuits of the curve, and one more that is as large as the chosen one with its complement.
        ours = [args.gpt2, "discover", "--model", model, "--pairs", pairs, "--steps", STEPS, "--edges", 100, "--random", 0]
        ours += ["--threads", args.threads, "--json"]
        other = [sys.executable, SCRIPT, "--eap-ig", args.eap_ig, "--threads", args.threads, "--batch", args.batch]
        other += ["--theirs", model, pairs]
        sides = [ours, other] if args.eap_ig else [ours]
        rounds = [[times(command) for command in sides] for _ in range(args.rounds)]
        for part, name in enumerate(("scores of all edges", "runs of ten circuits")):
            found = [[of_round[side][part] for of_round in rounds] for side in range(len(sides))]
            line = f"{name:22}" + "".join(f"  {min(of):6.2f} s ({statistics.median(of):.2f})" for of in found)
            print(line + (f"  {min(found[0]) / min(found[1]):.2f}" if args.eap_ig else ""))
        peaks = [max(of_round[side][2] for of_round in rounds) for side in range(len(sides))]
        print("memory                " + "".join(f"  {peak:6.2f} GB" for peak in peaks))


def random_pairs(count: int, tokens: int, vocabulary: int) -> list[dict]:
    import random

    draw = random.Random(1)
    found = []
    for _ in range(count):
        clean = [draw.randrange(vocabulary) for _ in range(tokens)]
        corrupted = list(clean)
        for place in (2, tokens // 2):
            corrupted[place] = draw.randrange(vocabulary)
        correct, incorrect = draw.sample(range(vocabulary), 2)
        found.append({"clean": clean, "corrupted": corrupted, "correct": correct, "incorrect": incorrect})
    return found


def times(command: list) -> tuple[float, float, float]:
    """Seconds of the scores and of the circuits, and the most memory in GB."""
    done = run("sh", "-c", '"$@" 2>&1', "sh", *command)  # both say their times on stderr
    scores = re.search(r"scored \d+ edges in ([\d.]+) s", done.stdout)
    circuits = re.search(r"ran (?:10|9) circuits in ([\d.]+) s", done.stdout)
    return float(scores[1]), float(circuits[1]), done.peak_bytes / 1e9


def theirs(args: argparse.Namespace, folder: str, pairs: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        package = Path(scratch) / "eap"
        package.mkdir()
        for path in (Path(args.eap_ig) / "src" / "eap").glob("*.py"):
            (package / path.name).write_text(path.read_text().replace("'cuda'", "'cpu'").replace('"cuda"', '"cpu"'))
        sys.path.insert(0, scratch)
        import torch
        from eap import attribute, evaluate
        from eap.graph import Graph
        from hooked_transformer import hooked
        from transformers import GPT2LMHeadModel

        torch.set_num_threads(args.threads)
        switches = dict(use_attn_result=True, use_split_qkv_input=True, use_hook_mlp_in=True)
        model = hooked(GPT2LMHeadModel.from_pretrained(folder), **switches)
        model.requires_grad_(False)

        def tokens(_model, ids, *_args):
            ids = torch.tensor(ids)
            return ids, torch.ones_like(ids), torch.full((len(ids),), ids.shape[1]), ids.shape[1]

        attribute.tokenize_plus = evaluate.tokenize_plus = tokens
        lines = [json.loads(line) for line in Path(pairs).read_text().splitlines()]
        batches = []
        for first in range(0, len(lines), args.batch):
            some = lines[first : first + args.batch]
            labels = torch.tensor([[pair["correct"], pair["incorrect"]] for pair in some])
            batches.append(([pair["clean"] for pair in some], [pair["corrupted"] for pair in some], labels))

        def metric(logits, _clean, _lengths, labels):
            last = logits[:, -1].gather(1, labels)
            return (last[:, 0] - last[:, 1]).sum()

        graph = Graph.from_model(model)
        start = time.perf_counter()
        attribute.attribute(model, graph, batches, metric, method="EAP-IG-inputs", ig_steps=STEPS, quiet=True)
        print(f"scored {len(graph.edges)} edges in {time.perf_counter() - start:.2f} s", file=sys.stderr)
        start = time.perf_counter()
        for share in SHARES:
            graph.apply_greedy(max(1, round(share * len(graph.edges))))
            evaluate.evaluate_graph(model, graph, batches, metric, quiet=True)
        print(f"ran {len(SHARES)} circuits in {time.perf_counter() - start:.2f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
