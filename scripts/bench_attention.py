#!/usr/bin/env python3
"""Time candle-fused's attention beside candle_nn's, plain Candle operations and PyTorch, in turn, at other models' shapes.

    cargo build --release --manifest-path examples/Cargo.toml --target-dir target/examples [--features x86-v4]
    pip install -r scripts/requirements.txt
    python scripts/bench_attention.py                  the table: f32, three rounds
    python scripts/bench_attention.py --isa avx2       ours and PyTorch held to AVX2
    python scripts/bench_attention.py --memory         how far our memory grows over T, forward and backward
    python scripts/bench_attention.py --rows decode --rounds 5 --pytorch-only

A round runs our binary, then PyTorch, each in a fresh process that does one untimed pass; a number is the median of the
rounds' medians. candle_nn and plain operations, which take seconds, run once, and their contexts must equal ours; plain
operations only where a copy of the scores takes less than 3 GB. PyTorch runs scaled_dot_product_attention in
torch.inference_mode, with an explicit mask where it needs one.
"""

import argparse
import json
import os
import statistics
import sys
import time

from bench.processes import ENVIRONMENT, Failure, run
from bench.rows import ROOT

BINARY = ROOT / "target/examples/release/attention"
ISAS = {"avx2": {"GPT2_ISA": "avx2", "ATEN_CPU_CAPABILITY": "avx2"}}

# name: heads, key heads, queries, keys, D, window, keys and values lie head by head
ROWS = {
    "llama 128": (32, 8, 128, 128, 64, "causal", False),
    "llama 1024": (32, 8, 1024, 1024, 64, "causal", False),
    "llama 4096": (32, 8, 4096, 4096, 64, "causal", False),
    "llama decode 1024": (32, 8, 1, 1024, 64, "causal", False),
    "llama decode 1024, cache": (32, 8, 1, 1024, 64, "causal", True),
    "whisper 1500": (12, 12, 1500, 1500, 64, "full", False),
    "window 256 of 4096": (32, 8, 4096, 4096, 64, "256", False),
    "window 256 of 8192": (32, 8, 8192, 8192, 64, "256", False),
    "gpt2 128": (12, 12, 128, 128, 64, "causal", False),
    "gpt2 1024": (12, 12, 1024, 1024, 64, "causal", False),
    "gpt2 decode 1024, cache": (12, 12, 1, 1024, 64, "causal", True),
}
MEMORY = {"causal": (32, 8, "causal"), "not causal": (12, 12, "full"), "window 256": (32, 8, "256")}
LENGTHS = (1024, 2048, 4096, 8192)


def ours(row: tuple, *more: str) -> dict:
    """What the binary prints."""
    heads, key_heads, queries, keys, dim, window, cached = row
    sizes = dict(heads=heads, key_heads=key_heads, queries=queries, keys=keys, dim=dim, window=window)
    words = [word for name, value in sizes.items() for word in (f"--{name.replace('_', '-')}", value)]
    return json.loads(run(BINARY, *words, *(["--cached"] if cached else []), *more).stdout)


def torch_ms(row: tuple, runs: int) -> float:
    """The time in a fresh process: this file again, with the row."""
    return float(run(sys.executable, __file__, "--worker", json.dumps([row, runs])).stdout)


def worker(row: list, runs: int) -> float:
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    heads, key_heads, t, s, d, window, cached = row
    q = torch.randn(1, t, heads, d).transpose(1, 2)
    lies = (lambda: torch.randn(1, key_heads, s, d)) if cached else lambda: torch.randn(1, s, key_heads, d).transpose(1, 2)
    k, v = lies(), lies()
    options: dict = {"enable_gqa": True} if key_heads != heads else {}
    if window == "causal":
        options |= {"is_causal": t == s} if t == s or t == 1 else {"attn_mask": torch.ones(t, s, dtype=torch.bool).tril(s - t)}
    elif window != "full":
        i, j = torch.arange(t)[:, None] + s - t, torch.arange(s)[None]
        options["attn_mask"] = (j <= i) & (j > i - int(window))
    times, passes = [], 1
    with torch.inference_mode():
        while len(times) <= runs:
            start = time.perf_counter()
            for _ in range(passes):
                torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)
            took = 1e3 * (time.perf_counter() - start)
            if took < 30:
                passes *= 2
                continue
            times.append(took / passes)
    return statistics.median(times[1:])


def in_candle(row: tuple, runs: int) -> dict:
    """The times of candle_nn and of plain operations."""
    heads, _, queries, keys, *_ = row
    plain = ",plain" if 4 * heads * queries * keys < 3e9 else ""
    return ours(row, "--by", f"ours,candle-nn{plain}", "--runs", "2" if queries >= 4096 else str(runs))


def table(names: list[str], rounds: int, runs: int, pytorch_only: bool) -> None:
    print("| ms | ours | candle_nn | plain | PyTorch | ours / candle_nn | ours / plain | ours / PyTorch |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for name in names:
        row = ROWS[name]
        mine, theirs = [], []
        once = {} if pytorch_only else in_candle(row, runs)
        for _ in range(rounds):
            mine.append(ours(row, "--by", "ours", "--runs", str(runs))["ours_ms"])
            theirs.append(torch_ms(row, runs))
        a, b = statistics.median(mine), statistics.median(theirs)
        others = [once.get("candle_nn_ms"), once.get("plain_ms"), b]
        cells = [f"{a:.3g}", *(f"{x:.3g}" if x else "" for x in others)]
        cells += [f"{a / x:.{digits}f}" if x else "" for x, digits in zip(others, (3, 3, 2))]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def memory() -> None:
    print("MB beyond the inputs, the output among them; forward, then forward and backward")
    print("| | " + " | ".join(f"T {t}" for t in LENGTHS) + " |\n|---" + "|---" * len(LENGTHS) + "|", flush=True)
    for name, (heads, key_heads, window) in MEMORY.items():
        cells = []
        for t in LENGTHS:
            row = (heads, key_heads, t, t, 64, window, False)
            grew = [ours(row, "--by", "ours", "--runs", "1", *more)["grew_mb"] for more in ((), ("--backward",))]
            cells.append(f"{grew[0]:.0f}, {grew[1]:.0f}")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", help="rows whose names contain one of these, by commas (default: all)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=5, help="timed runs in a round")
    parser.add_argument("--isa", choices=ISAS, help="hold ours and PyTorch to an instruction set")
    parser.add_argument("--pytorch-only", action="store_true", help="leave out candle_nn and plain operations")
    parser.add_argument("--memory", action="store_true", help="memory over T instead of times")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(worker(*json.loads(args.worker)))
        return
    if not BINARY.exists():
        parser.error(f"{BINARY} does not exist; the first command of --help makes it")
    ENVIRONMENT.update(ISAS.get(args.isa, {}))
    names = [name for name in ROWS if not args.rows or any(part in name for part in args.rows.split(","))]
    try:
        memory() if args.memory else table(names, max(args.rounds, 1), max(args.runs, 1), args.pytorch_only)
    except Failure as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
