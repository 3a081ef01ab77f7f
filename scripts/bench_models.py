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
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BINARY = ROOT / "target/examples/release/models"
ISAS = {"avx2": {"GPT2_ISA": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}}
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


def answers(command: list[str], environment: dict[str, str]) -> tuple[list[dict], int]:
    """The lines of JSON that a process prints, and the most memory that it held. Its notes are passed on."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    with process.stdout, process.stderr:
        # The errors are few lines: they fit the pipe.
        out, errors = process.stdout.read(), process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    sys.stderr.writelines(f"{line}\n" for line in errors.splitlines() if line.startswith("note: "))
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        shown = " ".join(word if len(word) < 60 else ".." for word in command)
        lines = errors.strip().splitlines() or ["no message"]
        why = lines[-1 if lines[0].startswith("Traceback") else 0]
        sys.exit(f"error: `{shown}` ended with status {process.returncode}: {why}")
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")], 1024 * usage.ru_maxrss


def ours(given: argparse.Namespace, model: str, options: list[str], environment: dict[str, str]) -> tuple[list[dict], int]:
    command = [str(BINARY), model, "--json", "--rounds", str(given.runs), "--tokens", given.tokens, "--batch", given.batch]
    return answers([*command, *options, *(["--tiny"] if given.tiny else [])], environment)


def torch_side(given: argparse.Namespace, model: str, environment: dict[str, str]) -> tuple[list[dict], int]:
    config, _ = answers([str(BINARY), model, "--config", *(["--tiny"] if given.tiny else [])], environment)
    work = dict(model=model, config=config[0], tokens=given.tokens, batch=given.batch, runs=given.runs, threads=given.threads)
    return answers([sys.executable, __file__, "--worker", json.dumps(work)], environment)


def file_sides(given: argparse.Namespace, form: str, folder: Path, environment: dict[str, str], left_out: set[str]) -> dict:
    """Column: its lines and its peak, of one quantized file, for one row: candle-transformers' model stops at more."""
    wanted = [column for column in (f"candle {form}", f"llama.cpp {form}") if column not in left_out]
    if not wanted or "1" not in given.batch.split(","):
        return {}
    found = {}
    path = folder / f"{form}.gguf"
    one_row = argparse.Namespace(**{**vars(given), "batch": "1"})
    options = ["--gguf", str(path), "--hold", form]
    if not path.exists():  # in a process of its own, whose peak is not the model's
        shortest = argparse.Namespace(**{**vars(one_row), "tokens": "1", "runs": 1})
        ours(shortest, "llama", options, environment)
    if wanted[0].startswith("candle"):
        lines, peak = ours(one_row, "llama", options, environment)
        found[wanted[0]] = ([{"what": line["what"], "side": line["quantized"]} for line in lines], peak)
    if wanted[-1].startswith("llama.cpp") and importlib.util.find_spec("llama_cpp"):
        vocabulary = answers([str(BINARY), "llama", "--config", *(["--tiny"] if given.tiny else [])], environment)[0][0]["vocab_size"]
        work = dict(engine=form, folder=str(folder), tokens=given.tokens, runs=given.runs, threads=given.threads)
        work |= dict(vocabulary=vocabulary, isa=given.isa or "")
        found[wanted[-1]] = answers([sys.executable, __file__, "--worker", json.dumps(work)], environment)
    return found


def timed(run, runs: int) -> dict:
    took = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        run()
        took.append(1e3 * (time.perf_counter() - start))
    return {"min_ms": min(took[1:]), "median_ms": statistics.median(took[1:])}


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
                    print(json.dumps({"what": f"{batch} x {t}", "torch": timed(lambda: net(ids), work["runs"])}))
                    continue
                prompt = timed(lambda: net(ids, use_cache=True, logits_to_keep=1), work["runs"])
                print(json.dumps({"what": f"{batch} x {t}", "torch": prompt}))
                past = net(ids, use_cache=True, logits_to_keep=1).past_key_values
                step = timed(lambda: net(ids[:, :1], past_key_values=past, use_cache=True), work["runs"])
                print(json.dumps({"what": f"a token after {batch} x {t}", "torch": step}))


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
    environment = {**os.environ, **ISAS.get(given.isa, {}), "RAYON_NUM_THREADS": str(given.threads), "RUST_BACKTRACE": "0",
                   "OMP_NUM_THREADS": str(given.threads)}  # fmt: skip
    left_out = {name.strip() for name in given.without.split(";")}
    with tempfile.TemporaryDirectory() as folder:
        run(given, environment, left_out, Path(folder))


def run(given: argparse.Namespace, environment: dict[str, str], left_out: set[str], folder: Path) -> None:
    record = []
    for model in given.models:
        rows: dict[str, dict[str, list[dict]]] = {}
        peaks: dict[str, int] = {}
        for number in range(given.rounds):
            kinds: dict[tuple[str, ...], dict[str, str]] = {}
            for column, (options, side) in SIDES.items():
                if column not in left_out and not (model in NOT_IN_BF16 and column in ("candle bf16", "ours bf16")):
                    kinds.setdefault(tuple(options), {})[side] = column
            for options, sides in kinds.items():
                found, peak = ours(given, model, list(options), environment)
                for line in found:
                    for side, column in sides.items():
                        rows.setdefault(line["what"], {}).setdefault(column, []).append(line[side])
                        record.append({"model": model, "what": line["what"], "column": column, "round": number, **line[side]})
                if "--only" in options:
                    peaks[next(iter(sides.values()))] = peak
            if number == 0 and "candle f32" not in left_out:
                _, peaks["candle f32"] = ours(given, model, ["--dtype", "f32", "--only", "theirs"], environment)
                _, peaks["ours f32"] = ours(given, model, ["--dtype", "f32", "--only", "ours"], environment)
            for form in FILES if model == "llama" else ():
                for column, (lines, peak) in file_sides(given, form, folder, environment, left_out).items():
                    peaks[column] = peak
                    for line in lines:
                        rows.setdefault(line["what"], {}).setdefault(column, []).append(line["side"])
                        record.append({"model": model, "what": line["what"], "column": column, "round": number, **line["side"]})
            if "PyTorch" not in left_out and model in TORCH:
                found, peaks["PyTorch"] = torch_side(given, model, environment)
                for line in found:
                    rows.setdefault(line["what"], {}).setdefault("PyTorch", []).append(line["torch"])
                    record.append({"model": model, "what": line["what"], "column": "PyTorch", "round": number, **line["torch"]})
            print(f"{model}: round {number + 1} of {given.rounds}", file=sys.stderr)
        table(model, rows, peaks)
    if given.json:
        given.json.write_text("".join(json.dumps(line) + "\n" for line in record))


if __name__ == "__main__":
    main()
