#!/usr/bin/env python3
"""Times how fast many prompts are continued together, beside transformers, OpenVINO, CTranslate2 and llama.cpp, in turn, on the same weights.

    cargo build --release -p gpt2-cli && scripts/python.sh    # the command, which writes GGUF, and the Python package
    pip install -r scripts/requirements-engines.txt
    PYTHONPATH=target/python-package python scripts/bench_batches.py [--prompts 32] [--new 48] [--rounds 3] [--sides WORD,..] [--isa avx2]

Random weights in GPT-2 small's shape, 2 threads, prompts of 8 to 63 tokens (the same on all sides), greedy, each side to the same number
of new tokens. A number is the new tokens of all prompts divided by the time of the whole call, the prompts' own passes included: of
the fastest run, and of the median. Each side is a process of its own, which does one untimed run and waits while the others run. A
side whose program is missing is left out and named. --isa holds the sides to an instruction set, but not llama.cpp, which has what it
was built for, nor all of OpenVINO (`beyond` in engines/openvino_side.py), whose int8 does not run then. Linux only.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from engines.rows import ISAS

ROOT = Path(__file__).resolve().parent.parent
VOCABULARY, END = 50257, 50256
NEEDS = {"ours": "gpt2_candle", "transformers": "transformers", "OpenVINO": "openvino", "CTranslate2": "ctranslate2", "llama.cpp": "llama_cpp"}
SIDES = ["ours f32", "transformers f32", "OpenVINO f32", "CTranslate2 f32", "ours f16", "llama.cpp f16"]
SIDES += ["ours q8_0", "OpenVINO int8", "CTranslate2 int8", "llama.cpp q8_0"]


def prompts_of(count):
    import numpy as np

    numbers = np.random.default_rng(1)
    return [numbers.integers(0, END, int(length)).tolist() for length in numbers.integers(8, 64, count)]


# --- the sides: each returns a function that continues all prompts and returns how many tokens that were ------------------------


def ours(folder, form, prompts, new):
    import gpt2_candle

    model = gpt2_candle.Model.load(folder / ("model" if form == "f32" else f"{form}.gguf"))
    options = {"max_new_tokens": new, "greedy": True, "batch": len(prompts), "kv": None if form == "f32" else "f16"}
    return lambda: sum(len(found.ids) for found in model.generate(prompts, **options))


def transformers(folder, _, prompts, new):
    import torch
    from transformers import GPT2LMHeadModel

    torch.set_num_threads(2)
    model = GPT2LMHeadModel.from_pretrained(folder / "model").eval()
    width = max(map(len, prompts))
    ids = torch.tensor([[END] * (width - len(one)) + one for one in prompts])
    mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in prompts])
    options = {"attention_mask": mask, "max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": END}

    @torch.inference_mode()
    def run():
        return len(prompts) * (model.generate(ids, **options).shape[1] - width)

    return run


def openvino(folder, form, prompts, new):
    import numpy as np
    from engines.openvino_side import Engine

    request = Engine(folder, form, 2).request
    width = max(map(len, prompts))
    padding = np.array([[width - len(one)] for one in prompts])
    padded = np.array([[END] * (width - len(one)) + one for one in prompts])
    inputs = {"rows": np.arange(len(prompts), dtype=np.int32), "first": np.array([-1])}

    def run():
        request.reset_state()
        ids, before = padded, 0
        for _ in range(new):
            queries = np.arange(before, before + ids.shape[1])
            keys = np.arange(before + ids.shape[1])
            # A place that is padding sees itself: a row that sees nothing would be NaN.
            sees = (keys <= queries[:, None]) & (keys >= padding[:, :, None]) | (keys == queries[:, None])
            mask = np.where(sees, np.float32(0), np.float32(-np.inf))[:, None]
            positions = np.maximum(queries - padding, 0)
            request.infer(inputs | {"ids": ids, "positions": positions, "mask": mask})
            ids, before = request.get_output_tensor().data[:, -1].argmax(-1)[:, None], len(keys)
        return len(prompts) * new

    return run


def ctranslate2(folder, form, prompts, new):
    import ctranslate2

    types = {"f32": "float32", "int8": "int8"}
    generator = ctranslate2.Generator(str(folder / "ctranslate2" / form), device="cpu", compute_type=types[form], inter_threads=1, intra_threads=2)
    words = [[str(one) for one in ids] for ids in prompts]
    options = {"beam_size": 1, "sampling_topk": 1, "max_length": new, "min_length": new, "include_prompt_in_result": False, "max_batch_size": len(prompts)}
    return lambda: sum(len(found.sequences_ids[0]) for found in generator.generate_batch(words, **options))


def llama(folder, form, prompts, new):
    import llama_cpp
    import numpy as np

    model = llama_cpp.llama_model_load_from_file(str(folder / f"{form}.gguf").encode(), llama_cpp.llama_model_default_params())
    settings = llama_cpp.llama_context_default_params()
    most = -(-(max(map(len, prompts)) + new) // 32) * 32
    settings.n_ctx, settings.n_seq_max, settings.kv_unified = len(prompts) * most, len(prompts), False
    settings.n_batch = sum(map(len, prompts))
    settings.n_threads = settings.n_threads_batch = 2
    context = llama_cpp.llama_init_from_model(model, settings)
    batch = llama_cpp.llama_batch_init(settings.n_batch, 0, 1)

    def add(token, position, sequence, asks):
        at = batch.n_tokens
        batch.token[at], batch.pos[at], batch.n_seq_id[at], batch.seq_id[at][0], batch.logits[at] = token, position, 1, sequence, asks
        batch.n_tokens += 1
        return at

    def decode():
        if status := llama_cpp.llama_decode(context, batch):
            sys.exit(f"llama_decode: {status}")

    def run():
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        batch.n_tokens = 0
        last = [[add(token, i, row, i + 1 == len(ids)) for i, token in enumerate(ids)][-1] for row, ids in enumerate(prompts)]
        decode()
        for step in range(new):
            logits = [np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, at), (VOCABULARY,)) for at in last]
            chosen = [int(row.argmax()) for row in logits]
            if step + 1 < new:
                batch.n_tokens = 0
                last = [add(token, len(prompts[row]) + step, row, True) for row, token in enumerate(chosen)]
                decode()
        return len(prompts) * new

    return run


def serve(side, folder, count, new):
    """Runs a side once for each line that comes in, and answers each with tokens and seconds."""
    program, form = side.split()
    start = {"ours": ours, "transformers": transformers, "OpenVINO": openvino, "CTranslate2": ctranslate2, "llama.cpp": llama}[program]
    run = start(Path(folder), form, prompts_of(count), new)
    run()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints
    for _ in sys.stdin:
        begin = time.perf_counter()
        tokens = run()
        print(json.dumps([tokens, time.perf_counter() - begin]), file=answers, flush=True)


# --- beside one another ----------------------------------------------------------------------------------------------------------


def write_files(folder, sides):
    """The checkpoint, and what the sides read instead of it."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config()).save_pretrained(folder / "model")
    for form in sorted({side.split()[1] for side in sides} & {"f16", "q8_0"}):
        command = [ROOT / "target/release/gpt2", "quantize", "--to", form, "--out", folder / f"{form}.gguf", folder / "model"]
        subprocess.run(command, check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "scripts")}
    for name, more in (("OpenVINO", ", masked=True"), ("CTranslate2", "")):
        if any(side.startswith(name) for side in sides):
            module = name.lower()
            write = f"from pathlib import Path; import sys; from engines import {module}_side as side; side.write(*map(Path, sys.argv[1:]){more})"
            subprocess.run([sys.executable, "-c", write, folder / module, folder / "model"], check=True, env=environment)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=32, metavar="N")
    parser.add_argument("--new", type=int, default=48, metavar="N", help="new tokens after each prompt")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--sides", default=",".join(SIDES), help="words of the sides' names, with commas between (default: all)")
    parser.add_argument("--isa", choices=ISAS, help="hold the sides to this instruction set, as far as each can be")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        return serve(*given.serve, given.prompts, given.new)
    if min(given.prompts, given.new, given.rounds) < 1 or given.new > 900:
        parser.error("--prompts, --new and --rounds are at least 1, and --new at most 900")
    sides = [side for side in SIDES if any(word in side for word in given.sides.split(","))]
    if given.isa and "OpenVINO int8" in sides:
        sides.remove("OpenVINO int8")
        print(f"left out, since it does not run with {given.isa} alone: OpenVINO int8", file=sys.stderr)
    missing = [side for side in sides if not importlib.util.find_spec(NEEDS[side.split()[0]])]
    for side in missing:
        print(f"left out, since it is not installed: {side}", file=sys.stderr)
    sides = [side for side in sides if side not in missing]
    if not sides:
        parser.error(f"no side to time; they are {', '.join(SIDES)}")
    if not all(importlib.util.find_spec(name) for name in ("torch", "transformers")) or not (ROOT / "target/release/gpt2").exists():
        sys.exit("error: the model's files need torch, transformers and target/release/gpt2: see --help")
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing here needs the network
    environment = {**os.environ, **ISAS.get(given.isa, {})}
    with tempfile.TemporaryDirectory(prefix="gpt2-batches-") as name:
        write_files(Path(name), sides)
        found = {side: [] for side in sides}
        running = {}
        for side in sides:
            command = [sys.executable, __file__, "--serve", side, name, "--prompts", str(given.prompts), "--new", str(given.new)]
            said = open(Path(name) / f"{side}.log", "w")  # noqa: SIM115
            running[side] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True, env=environment)
        try:
            for number in range(given.rounds + 1):  # the first round waits until all sides have begun
                for side, process in running.items():
                    process.stdin.write("run\n")
                    process.stdin.flush()
                    line = process.stdout.readline()
                    if not line:
                        sys.exit(f"error: {side} ended\n{(Path(name) / f'{side}.log').read_text()[-2000:]}")
                    tokens, seconds = json.loads(line)
                    if tokens != given.prompts * given.new:
                        sys.exit(f"error: {side} gave {tokens} tokens, expected {given.prompts * given.new}")
                    if number:
                        found[side].append(tokens / seconds)
        finally:
            for process in running.values():
                process.kill()
    print("| tokens a second, fastest / median | |\n|---|---:|")
    for side, rates in found.items():
        print(f"| {side} | {max(rates):.0f} / {sorted(rates)[len(rates) // 2]:.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
