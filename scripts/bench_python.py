#!/usr/bin/env python3
"""Times the Python package beside TransformerLens: the same model, the same number of threads, in turn.

    scripts/bench_python.py --model FOLDER --side lens2=/venv2/bin/python --side lens4=/venv4/bin/python [--threads 1]

FOLDER is a GPT-2 as transformers writes it; random weights do. `ours` is this Python, with the package on PYTHONPATH (scripts/python.sh builds it); a
side named lens2 runs TransformerLens 2's HookedTransformer without processing of the weights, lens4 the bridge of TransformerLens 4.
Prints the fastest run of each side, and its ratio to the fastest of each other; the medians stand in parentheses.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.side import serve
from hooked_transformer import hooked

# What each run does, and how many tokens it takes.
TASKS = {
    "import": "import of the package",
    "load": "load the model",
    "cache 64": "run_with_cache, all usual points, 64 tokens",
    "cache 512": "run_with_cache, all usual points, 512 tokens",
    "plain 64": "a pass over 64 tokens",
    "hooks 64": "the same with a hook a layer that writes to z",
    "attribution 64": "attribution patching of all heads, 64 tokens",
    "generate 64": "64 tokens after 16, with a hook",
    "memory 1024": "peak memory of run_with_cache at 1,024 tokens, less that before, MB",
}
FRESH = ("import", "load", "memory 1024")


def status_mb(name: str) -> float:
    """A line of /proc/self/status, such as VmRSS, in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1e3
    raise RuntimeError(f"/proc/self/status has no {name}")


class Ours:
    def __init__(self, model: str, threads: int) -> None:
        from gpt2_candle import Model

        self.model = Model.load(model, threads=threads)

    def task(self, name: str, ids: Callable[[int, int], list[int]]) -> Callable[[], Any]:
        model = self.model
        kind, _, t = name.partition(" ")

        def silence(value: Any, hook: Any) -> Any:
            value[:, :, 0] = 0
            return value

        if kind in ("cache", "memory"):
            return lambda: model.run_with_cache(ids(int(t), 0))
        if kind == "plain":
            return lambda: model(ids(64, 0))
        if kind == "hooks":
            hooks = [(f"blocks.{layer}.attn.hook_z", silence) for layer in range(model.config["n_layer"])]
            return lambda: model.run_with_hooks(ids(64, 0), hooks)
        if kind == "attribution":
            return lambda: model.attribution(ids(64, 0), ids(64, 1), 11, 12)
        hooks = [("blocks.0.attn.hook_z", silence)]
        return lambda: model.generate(ids(16, 0), max_new_tokens=64, temperature=0, fwd_hooks=hooks)


class Lens:
    def __init__(self, model: str, threads: int, version: int) -> None:
        import torch
        from transformers import GPT2LMHeadModel

        torch.set_num_threads(threads)
        self.torch = torch
        hf = GPT2LMHeadModel.from_pretrained(model)
        if version == 4:
            from transformer_lens.model_bridge import TransformerBridge

            self.model = TransformerBridge.boot_transformers(model, hf_model=hf, device="cpu")
        else:
            self.model = hooked(hf)
            self.model.tokenizer = ends_only()  # `generate` wants one, though it gets ids
        self.model.eval()
        self.layers = hf.config.n_layer
        self.heads = hf.config.n_head

    def task(self, name: str, ids: Callable[[int, int], list[int]]) -> Callable[[], Any]:
        torch, model = self.torch, self.model
        kind, _, t = name.partition(" ")

        def tokens(t: int, seed: int) -> Any:
            return torch.tensor([ids(t, seed)])

        def silence(value: Any, hook: Any) -> Any:
            value[:, :, 0] = 0
            return value

        def without_gradient(run: Callable[[], Any]) -> Callable[[], Any]:
            def inner() -> Any:
                with torch.no_grad():
                    return run()

            return inner

        if kind in ("cache", "memory"):
            return without_gradient(lambda: model.run_with_cache(tokens(int(t), 0)))
        if kind == "plain":
            return without_gradient(lambda: model(tokens(64, 0)))
        if kind == "hooks":
            hooks = [(f"blocks.{layer}.attn.hook_z", silence) for layer in range(self.layers)]
            return without_gradient(lambda: model.run_with_hooks(tokens(64, 0), fwd_hooks=hooks))
        if kind == "attribution":
            return lambda: self.attribution(tokens(64, 0), tokens(64, 1))
        hooks = [("blocks.0.attn.hook_z", silence)]

        def generate() -> Any:
            with model.hooks(fwd_hooks=hooks):
                return model.generate(tokens(16, 0), max_new_tokens=64, do_sample=False, stop_at_eos=False, verbose=False)

        return without_gradient(generate)

    def attribution(self, clean: Any, corrupt: Any) -> Any:
        """As in Nanda's demo of attribution patching: the clean run's z, and the gradient in the corrupted run."""
        torch, model = self.torch, self.model
        names = [f"blocks.{layer}.attn.hook_z" for layer in range(self.layers)]
        wanted = lambda name: name in names  # noqa: E731
        with torch.no_grad():
            _, cache = model.run_with_cache(clean, names_filter=wanted)
        values: dict[str, Any] = {}

        def keep(value: Any, hook: Any) -> Any:
            value.retain_grad()
            values[hook.name] = value
            return value  # the bridge passes on another view otherwise

        logits = model.run_with_hooks(corrupt, fwd_hooks=[(name, keep) for name in names])
        (logits[0, -1, 11] - logits[0, -1, 12]).backward()
        found = []
        for name, value in zip(names, values.values()):
            found.append(((cache[name] - value.detach()) * value.grad).view(*value.shape[:2], self.heads, -1).sum(-1))
        model.zero_grad()
        return found


def ends_only() -> Any:
    """A tokenizer that knows where texts end, and nothing else."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    end = "<|endoftext|>"
    words = Tokenizer(models.BPE(vocab={end: 0}, merges=[]))
    return PreTrainedTokenizerFast(tokenizer_object=words, bos_token=end, eos_token=end, pad_token=end)


class Tasks:
    """What a side's process serves."""

    def __init__(self, kind: str, model: str, threads: int) -> None:
        if kind == "ours":
            os.environ["RAYON_NUM_THREADS"] = str(threads)
        start = time.perf_counter()
        importlib.import_module("gpt2_candle" if kind == "ours" else "transformer_lens")
        imported = time.perf_counter()
        self.runner: Any = Ours(model, threads) if kind == "ours" else Lens(model, threads, int(kind[-1]))
        self.known = {"import": imported - start, "load": time.perf_counter() - imported}
        self.vocabulary = json.loads((Path(model) / "config.json").read_text())["vocab_size"]
        self.ready: dict[str, Callable[[], Any]] = {}

    def ids(self, t: int, seed: int) -> list[int]:
        return [(7919 * (i + 1) + 104729 * seed) % (self.vocabulary - 1) for i in range(t)]

    def run(self, name: str) -> float:
        """The seconds of a task, or its MB."""
        if name in self.known:
            return self.known[name]
        if name.startswith("memory"):
            run = self.runner.task(name, self.ids)
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
            before = status_mb("VmRSS")
            run()
            return status_mb("VmHWM") - before
        if name not in self.ready:
            self.ready[name] = self.runner.task(name, self.ids)
            self.ready[name]()  # not timed
        start = time.perf_counter()
        results = [self.ready[name]()]
        found = time.perf_counter() - start
        results.clear()  # not timed
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, metavar="FOLDER", help="a GPT-2 as transformers writes it")
    parser.add_argument("--side", action="append", default=[], metavar="NAME=PYTHON", help="lens2 or lens4, and a Python that has it")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--task", action="append", metavar="NAME", help=f"one of {', '.join(TASKS)}; repeatable")
    parser.add_argument("--as-side", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_side:
        serve(lambda: Tasks(options.as_side, options.model, options.threads))
        return
    from bench.processes import ENVIRONMENT, Worker

    words = ["--model", options.model, "--threads", options.threads]
    environment = ENVIRONMENT | {"TRANSFORMERS_VERBOSITY": "error", "OMP_NUM_THREADS": str(options.threads)}
    pipes = dict(cwd=None, env=environment, stderr=subprocess.DEVNULL)

    def started(name: str) -> Worker:
        return Worker(name, pythons[name], __file__, "--as-side", name, *words, **pipes)

    pythons = {"ours": sys.executable, **dict(one.split("=", 1) for one in options.side)}
    sides = {name: None for name in pythons}
    for task in options.task or TASKS:
        found: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(options.rounds if task not in FRESH else min(options.rounds, 3)):
            for name in sides:
                if task in FRESH and sides[name]:
                    sides[name].close()
                if task in FRESH or not sides[name]:
                    sides[name] = started(name)
                found[name].append(sides[name]("run", name=task))
        fastest = {name: min(values) for name, values in found.items()}
        middle = {name: statistics.median(values) for name, values in found.items()}
        unit, scale = ("MB", 1) if task.startswith("memory") else ("ms", 1e3)
        print(f"{task}: {TASKS[task]}")
        for name in sides:
            ratio = f"   ours takes {fastest['ours'] / fastest[name]:.2f} ({middle['ours'] / middle[name]:.2f})" if name != "ours" else ""
            print(f"  {name:6} {scale * fastest[name]:9.1f} {unit} ({scale * middle[name]:.1f}){ratio}", flush=True)
    for one in filter(None, sides.values()):
        one.close()


if __name__ == "__main__":
    main()
