#!/usr/bin/env python3
"""Time candle-transformers' models, the same on candle-fused, PyTorch and llama.cpp, in turn, with random weights of one shape.

    cargo build --release --manifest-path examples/Cargo.toml --target-dir target/examples --bin models [--features x86-v4]
    pip install -r scripts/requirements-engines.txt          llama.cpp is left out where llama-cpp-python is missing
    python scripts/bench_models.py llama bert               the table: fastest and median of three rounds
    python scripts/bench_models.py bert --tokens 32,128,512 --batch 1,16
    python scripts/bench_models.py llama --isa avx2 --threads 1
    python scripts/bench_models.py --help

A round runs one process for candle and ours in f32, which take turns and whose results must agree; one for each other way
of holding our weights; one for candle and ours in bf16; one for PyTorch (transformers, eager mode, SDPA, inference mode);
and, for one row of Llama, two for each quantized file: candle-transformers' quantized model, and llama.cpp. Each process
does untimed passes first. A number is the fastest of all rounds, with the median of the rounds' medians beside it; both
candle and ours use the allocator that keeps large memory. `peak` is the most memory that a process with that side alone held.
"""

import argparse
import importlib.util
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

import bench.processes as bench
from bench.rows import ISAS, ROOT
from bench.side import milliseconds

BINARY = ROOT / "target/examples/release/models"
ENCODERS = ("bert", "modernbert")
# In bf16, candle-transformers gives NaN for BERT (its mask becomes -inf * 0) and refuses Phi (its rotations stay in f32).
NOT_IN_BF16 = ("bert", "phi")
# transformers' names of the same models; Whisper's encoder alone takes another input.
TORCH = {"llama": "llama", "qwen3": "qwen3", "mistral": "mistral", "gemma3": "gemma3_text", "phi": "phi", "bert": "bert",
         "modernbert": "modernbert"}  # fmt: skip
# Column: the options of our binary, and which side of its answer it is.
SIDES = {
    "candle f32": (["--dtype", "f32"], "theirs"),
    "ours f32": (["--dtype", "f32"], "ours"),
    "ours f32, weights bf16": (["--dtype", "f32", "--hold", "bf16", "--only", "ours"], "ours"),
    "ours f32, weights q8_0": (["--dtype", "f32", "--hold", "q8_0", "--only", "ours"], "ours"),
    "ours f32, weights q4_0": (["--dtype", "f32", "--hold", "q4_0", "--only", "ours"], "ours"),
    "candle bf16": (["--dtype", "bf16"], "theirs"),
    "ours bf16": (["--dtype", "bf16"], "ours"),
}
# Quantized files of Llama alone: candle-transformers' model of each, and llama.cpp.
FILES = ("q8_0", "q4_0")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("models", nargs="*", default=["llama", "bert"], help="of " + ", ".join([*TORCH, "whisper"]) + " (default: llama bert)")
    add("--tokens", default="128,1024", help="lengths (default 128,1024; BERT has 512 positions)")
    add("--batch", default="1", help="rows (default 1)")
    add("--rounds", type=int, default=3, help="default 3")
    add("--runs", type=int, default=3, help="timed passes of a process (default 3)")
    add("--isa", choices=sorted(ISAS), help="hold ours and PyTorch to it; candle's products always take the widest of their build")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all")
    add("--without", default="", help="columns to leave out, separated by semicolons: 'candle bf16;PyTorch'")
    add("--tiny", action="store_true", help="small models, to see that all works")
    add("--json", type=Path, metavar="FILE", help="write every measurement there")
    add("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def answers(*command: object) -> tuple[list[dict], int]:
    """The lines of JSON that a process prints, and the most memory that it held. Its notes are passed on."""
    done = bench.run(*command)
    sys.stderr.writelines(f"{line}\n" for line in done.stderr.splitlines() if line.startswith("note: "))
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")], done.peak_bytes


def ours(given: argparse.Namespace, model: str, *options: object) -> tuple[list[dict], int]:
    return answers(BINARY, model, *options, *(["--tiny"] if given.tiny else []))


def passes(given: argparse.Namespace) -> list[object]:
    return ["--json", "--rounds", given.runs, "--tokens", given.tokens, "--batch", given.batch]


def other(given: argparse.Namespace, **work: object) -> tuple[list[dict], int]:
    """This file again, as the process of another side."""
    work |= dict(tokens=given.tokens, batch=given.batch, runs=given.runs, threads=given.threads)
    return answers(sys.executable, __file__, "--worker", json.dumps(work))


def file_sides(given: argparse.Namespace, form: str, folder: Path, left_out: set[str]) -> dict:
    """Column: its lines and its peak, of one quantized file, for one row: candle-transformers' model stops at more."""
    wanted = [column for column in (f"candle {form}", f"llama.cpp {form}") if column not in left_out]
    if not wanted or "1" not in given.batch.split(","):
        return {}
    found = {}
    path = folder / f"{form}.gguf"
    options = ["--gguf", path, "--hold", form, "--json", "--batch", 1]
    if not path.exists():  # in a process of its own, whose peak is not the model's
        ours(given, "llama", *options, "--rounds", 1, "--tokens", 1)
    if wanted[0].startswith("candle"):
        lines, peak = ours(given, "llama", *options, "--rounds", given.runs, "--tokens", given.tokens)
        found[wanted[0]] = ([{"what": line["what"], "side": line["quantized"]} for line in lines], peak)
    if wanted[-1].startswith("llama.cpp") and importlib.util.find_spec("llama_cpp"):
        vocabulary = ours(given, "llama", "--config")[0][0]["vocab_size"]
        found[wanted[-1]] = other(given, engine=form, folder=str(folder), vocabulary=vocabulary, isa=given.isa or "")
    return found


def timed(run, runs: int) -> dict:
    took = milliseconds(run, runs)
    return {"min_ms": min(took), "median_ms": statistics.median(took)}


def llama_worker(work: dict) -> None:
    from engines.llama_side import Engine

    engine = Engine(Path(work["folder"]), work["engine"], work["threads"])
    if note := work["isa"] and engine.beyond(work["isa"]):
        print(f"note: {note}", file=sys.stderr)
        return
    for t in map(int, work["tokens"].split(",")):
        ids = [(7919 * i + 1) % work["vocabulary"] for i in range(t)]
        print(json.dumps({"what": f"1 x {t}", "side": timed(lambda: engine.prefill(ids, 64), work["runs"])}))
        print(json.dumps({"what": f"a token after 1 x {t}", "side": timed(lambda: engine.step(7), work["runs"])}))


def worker(work: dict) -> None:
    if "engine" in work:
        return llama_worker(work)
    import torch
    import transformers

    torch.set_num_threads(work["threads"])
    torch.manual_seed(0)
    name, config = TORCH[work["model"]], dict(work["config"])
    config.pop("rope_scaling", None)  # costs nothing in a pass
    config = transformers.AutoConfig.for_model(name, **config)
    encoder = work["model"] in ENCODERS
    make = transformers.AutoModel if encoder else transformers.AutoModelForCausalLM
    net = make.from_config(config, attn_implementation="sdpa").eval()

    with torch.inference_mode():
        for batch in map(int, work["batch"].split(",")):
            for t in map(int, work["tokens"].split(",")):
                if work["model"] == "bert" and t > 512:
                    continue
                ids = torch.randint(0, config.vocab_size, (batch, t))
                if encoder:
                    print(json.dumps({"what": f"{batch} x {t}", "side": timed(lambda: net(ids), work["runs"])}))
                    continue
                prompt = timed(lambda: net(ids, use_cache=True, logits_to_keep=1), work["runs"])
                print(json.dumps({"what": f"{batch} x {t}", "side": prompt}))
                past = net(ids, use_cache=True, logits_to_keep=1).past_key_values
                step = timed(lambda: net(ids[:, :1], past_key_values=past, use_cache=True), work["runs"])
                print(json.dumps({"what": f"a token after {batch} x {t}", "side": step}))


def table(model: str, rows: dict[str, dict[str, list[dict]]], peaks: dict[str, int]) -> None:
    columns = list(dict.fromkeys(column for cells in rows.values() for column in cells))
    print(f"\n| {model}, ms: fastest (median) | " + " | ".join(columns) + " |\n" + "|---" * (len(columns) + 1) + "|")
    for what, cells in rows.items():
        shown = []
        for column in columns:
            times = cells.get(column)
            fastest = min(t["min_ms"] for t in times) if times else 0.0
            shown.append(f"{fastest:.1f} ({statistics.median(t['median_ms'] for t in times):.1f})" if times else "")
        print(f"| {what} | " + " | ".join(shown) + " |")
    if peaks:
        print("| peak, MB | " + " | ".join(f"{peaks[c] / 1e6:.0f}" if c in peaks else "" for c in columns) + " |")


def main() -> None:
    given = arguments()
    if given.worker:
        return worker(json.loads(given.worker))
    if not BINARY.exists():
        sys.exit(f"error: {BINARY} is missing; the first line of --help builds it")
    bench.ENVIRONMENT.update(ISAS.get(given.isa, {}))
    bench.ENVIRONMENT |= {"RUST_BACKTRACE": "0"} | dict.fromkeys(("RAYON_NUM_THREADS", "OMP_NUM_THREADS"), str(given.threads))
    left_out = {name.strip() for name in given.without.split(";")}
    try:
        with tempfile.TemporaryDirectory() as folder:
            run(given, left_out, Path(folder))
    except bench.Failure as error:
        sys.exit(f"error: {error}")


def run(given: argparse.Namespace, left_out: set[str], folder: Path) -> None:
    record = []
    for model in given.models:
        rows: dict[str, dict[str, list[dict]]] = {}
        peaks: dict[str, int] = {}

        def note(column: str, what: str, times: dict) -> None:
            rows.setdefault(what, {}).setdefault(column, []).append(times)
            record.append({"model": model, "what": what, "column": column, "round": number, **times})

        for number in range(given.rounds):
            kinds: dict[tuple[str, ...], dict[str, str]] = {}
            for column, (options, side) in SIDES.items():
                if column not in left_out and not (model in NOT_IN_BF16 and column in ("candle bf16", "ours bf16")):
                    kinds.setdefault(tuple(options), {})[side] = column
            for options, sides in kinds.items():
                found, peak = ours(given, model, *passes(given), *options)
                for line in found:
                    for side, column in sides.items():
                        note(column, line["what"], line[side])
                if "--only" in options:
                    peaks[next(iter(sides.values()))] = peak
            if number == 0 and "candle f32" not in left_out:
                for column, side in (("candle f32", "theirs"), ("ours f32", "ours")):
                    _, peaks[column] = ours(given, model, *passes(given), "--dtype", "f32", "--only", side)
            others = {}
            for form in FILES if model == "llama" else ():
                others |= file_sides(given, form, folder, left_out)
            if "PyTorch" not in left_out and model in TORCH:
                config = ours(given, model, "--config")[0][0]
                others["PyTorch"] = other(given, model=model, config=config)
            for column, (lines, peak) in others.items():
                peaks[column] = peak
                for line in lines:
                    note(column, line["what"], line["side"])
            print(f"{model}: round {number + 1} of {given.rounds}", file=sys.stderr)
        table(model, rows, peaks)
    if given.json:
        given.json.write_text("".join(json.dumps(line) + "\n" for line in record))


if __name__ == "__main__":
    main()
