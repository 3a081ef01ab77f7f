"""Runs both sides alternately, and evaluates their times."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import NamedTuple

from .processes import Done, Failure, Worker, is_quiet, run, watch
from .report import amount, progress
from .rows import GPT2_SMALL, INSTALL, ROOT, Row, SIDES, THREADS, TOLERANCES, TORCH_DTYPES, prompt
from .torch_side import FRESH_CORE, FRESH_FORWARD, FRESH_START, FRESH_TRAIN


class TorchWorker(Worker):
    advice = f"\nversions that work: {INSTALL}"

    def __init__(self) -> None:
        super().__init__("PyTorch", sys.executable, "-B", ROOT / "scripts/bench_vs_pytorch.py", "--worker")


class Bench(NamedTuple):
    binary: Path
    pytorch: TorchWorker
    shape: dict
    folder: Path  # the checkpoint
    dtype: str = "f32"

    def gpt2(self, command: str, threads: int, *options: object) -> Done:
        return run(self.binary, *command.split(), "--threads", threads, *options)

    def generate(self, ids: list[int], count: int, threads: int) -> Done:
        options = ["--model", self.folder, "--ids", ",".join(map(str, ids)), "--max-new-tokens", count]
        return self.gpt2("generate --greedy --json", threads, *options, "--dtype", self.dtype)

    def ours(self, row: Row, threads: int) -> float:
        if row.group == "start":
            ids = prompt(row.tokens, self.shape["vocab_size"])
            return median([self.generate(ids, 1, threads).seconds for _ in range(1 + row.runs)][1:])
        options = ["--batch", row.batch, "--tokens", row.tokens, "--runs", row.runs]
        options += ["--train-dtype" if row.trains else "--dtype", self.dtype]
        options += ["--last"] if row.last else []
        options += ["--new-tokens", row.new_tokens] if row.group == "decode" else []
        options += ["--model", self.folder] if row.needs_checkpoint else []
        what = {"memory": "forward", "train-memory": "train"}.get(row.group, row.group)
        done = self.gpt2(f"bench {what} --json", threads, *options)
        found = json.loads(done.stdout)
        if row.unit == "GB":
            return done.peak_bytes / 1e9
        return found["tokens_per_s" if row.group == "decode" else "median_ms"]

    def theirs(self, row: Row, threads: int) -> float:
        def fresh(code: str) -> Done:
            ids = prompt(row.tokens, self.shape["vocab_size"])
            return run(sys.executable, "-c", code, self.folder, threads, json.dumps(ids), TORCH_DTYPES[self.dtype])

        if row.group == "start":
            return median([fresh(FRESH_START).seconds for _ in range(1 + row.runs)][1:])
        if row.group == "memory":
            return fresh(FRESH_FORWARD).peak_bytes / 1e9
        if row.trains:
            counts = [threads, row.batch, row.tokens, row.runs]
            done = run(sys.executable, "-c", FRESH_TRAIN, *counts, row.theirs, TORCH_DTYPES[self.dtype])
            return float(done.stdout) if row.group == "train" else done.peak_bytes / 1e9
        ms = self.pytorch("time", row=asdict(row), threads=threads)
        return 1e3 * row.batch * row.new_tokens / ms if row.group == "decode" else ms

    def rounds(self, row: Row, threads: int, numbers: Iterable[int]) -> list[dict]:
        """Runs both sides and computes their ratio; who goes first alternates from round to round."""
        found = []
        for number in numbers:
            one, others = {}, []
            for side in SIDES if number % 2 == 0 else SIDES[::-1]:
                measure_side = self.ours if side == "ours" else self.theirs
                one[side], cpus = watch(lambda: measure_side(row, threads), [self.pytorch])
                others.append(cpus)
            one |= {"ratio": one["ours"] / one["pytorch"], "others_cpus": max(others)}
            found.append(one)
            shown = f"{amount(one['ours'], row.unit)}, PyTorch {amount(one['pytorch'], row.unit)}"
            note = "" if is_quiet(one) else f"  DISTURBED: others used {max(others):.1f} CPUs"
            progress(f"round {number + 1}, {row.title}, {threads} threads: {shown}, {one['ratio']:.3f}{note}")
        return found

    def core_memory(self, tokens: int, threads: int) -> dict[str, int]:
        """Peak bytes of a fresh process that only runs attention."""
        h, c = GPT2_SMALL["n_head"], GPT2_SMALL["n_embd"]
        ours = self.gpt2("bench core --runs 1", threads, "--tokens", tokens)
        theirs = run(sys.executable, "-c", FRESH_CORE, threads, tokens, h, c // h)
        return {"ours": ours.peak_bytes, "pytorch": theirs.peak_bytes}


def medians(rounds: list[dict]) -> dict:
    """The result over the undisturbed rounds, if there are any."""
    quiet = [one for one in rounds if is_quiet(one)]
    result = {key: median(one[key] for one in quiet or rounds) for key in (*SIDES, "ratio")}
    return result | {"disturbed": not quiet, "rounds": rounds}


def check_agreement(bench: Bench, threads: int) -> dict:
    """Compares both sides' logits and greedy ids on the checkpoint; refuses to continue if they differ."""
    ids = prompt(20, bench.shape["vocab_size"])
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "export.safetensors"
        listed = ",".join(map(str, ids))
        options = ["--model", bench.folder, "--ids", listed, "--export", file, "--dtype", bench.dtype]
        bench.gpt2("forward", threads, *options)
        ours = json.loads(bench.generate(ids, 8, threads).stdout)["ids"]
        found = bench.pytorch("agree", exported=str(file), ids=ids, new_ids=len(ours))
    allowed = TOLERANCES[bench.dtype]
    if not found["logits"] <= allowed:  # true for NaN too
        raise Failure(f"nothing was timed: logits differ by {found['logits']:.1e}, allowed is {allowed}")
    if bench.dtype == "f32" and found["new_ids"] != ours:  # in halves, the logits of two tokens can be the same number
        raise Failure(f"nothing was timed: greedy ids are {ours}, but {found['new_ids']} in transformers")
    equal = sum(one == other for one, other in zip(found["new_ids"], ours))
    progress(f"both sides compute the same: logits within {found['logits']:.1e}, {equal} of {len(ours)} greedy ids equal")
    return found


def measure_rows(bench: Bench, rows: list[Row], rounds: int, threads: int, peaks: Callable[[], dict]) -> dict:
    machine_peaks, found = [], {row: [] for row in rows}
    for number in range(rounds):
        machine_peaks.append(peaks())
        for row in rows:
            found[row] += bench.rounds(row, threads, [number])
    results = []
    for row, each in found.items():
        result = {"title": row.title, "unit": row.unit} | asdict(row) | medians(each)
        met = result["ratio"] >= row.aim if row.group == "decode" else result["ratio"] <= row.aim
        result["met"] = None if result["disturbed"] else met
        if row.peak_aim:
            result["peak"], giga = work(row, bench.shape, bench.dtype)
            known = [one[result["peak"]] for one in machine_peaks if one[result["peak"]] and is_quiet(one)]
            result["peak_range"] = [min(known), max(known)] if known else None
            for side in SIDES:
                per_s = result[side] if row.group == "decode" else 1e3 / result[side]
                result[f"{side}_of_peak"] = giga * per_s / max(known) if known else None
        results.append(result)
    return {"rows": results, "peaks": machine_peaks}


def work(row: Row, shape: dict, dtype: str) -> tuple[str, float]:
    """The limit that a row runs into, and 10⁹ operations of core, or 10⁹ bytes read for a decoded token."""
    if row.group == "core":
        return "fma_gflops", 4e-9 * row.batch * GPT2_SMALL["n_embd"] * row.tokens * (row.tokens + 1) / 2
    c, layers = shape["n_embd"], shape["n_layer"]
    parameters = layers * (12 * c * c + 13 * c) + 2 * c + shape["vocab_size"] * c  # h, ln_f, lm_head
    keys = row.tokens + (row.new_tokens + 1) / 2  # on average over the steps
    size = 4 if dtype == "f32" else 2
    return "read_gb_s", size * 1e-9 * (parameters + 2 * layers * keys * c)


def measure_sweep(bench: Bench, lengths: list[int], rounds: int, threads: int) -> list[dict]:
    """Core over T; T = 1 shows how much memory a process takes before it computes anything."""
    base = bench.core_memory(1, threads)
    sweep = [{"tokens": 1, "peak_bytes": base}]
    for t in lengths:
        row = Row("core", tokens=t, runs=50 if t <= 512 else 9 if t <= 2048 else 3)
        result = {"tokens": t} | medians(bench.rounds(row, threads, range(rounds)))
        peak = bench.core_memory(t, threads)
        sweep.append(result | {"peak_bytes": peak, "above_t1": {side: peak[side] - base[side] for side in SIDES}})
    return sweep


def measure_threads(bench: Bench, rows: list[Row], rounds: int) -> list[dict]:
    sweep = []
    for row in rows:
        results = [{"threads": n} | medians(bench.rounds(row, n, range(rounds))) for n in THREADS]
        for result in results:
            for side in SIDES:
                gain = result[side] / results[0][side]
                result[f"{side}_speed"] = gain if row.group == "decode" else 1 / gain
            sweep.append({"title": row.title, "unit": row.unit} | result)
    return sweep


def describe_machine() -> dict:
    lines = [line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line]
    fields = {key.strip(): value.strip() for key, value in lines}
    flags = fields.get("flags", fields.get("Features", "")).split()
    git = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return {
        "cpu": fields.get("model name", "unknown"),
        "flags": [flag for flag in flags if flag in ("fma", "avx2", "asimd") or flag.startswith("avx512")],
        "cores": len(os.sched_getaffinity(0)),
        "date": time.strftime("%Y-%m-%d"),
        "revision": git.stdout.strip() or "unknown",
    }
