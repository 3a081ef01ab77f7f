#!/usr/bin/env python3
"""Time the `gpt2` binary and PyTorch alternately on a GPU, and print the ratios beside the aims.

    scripts/check-gpu.sh                                                          everything, with `gpt2 verify` first
    python scripts/check_gpu.py --binary target/cuda/gpt2 --markdown gpu.md       the timings alone
    python scripts/check_gpu.py --binary target/release/gpt2 --device cpu --quick no GPU: does this script run?

GPT-2 small. Both sides leave out warm-up runs, put CUDA events around each run and wait for its end before the next; a
round's number is the median of its runs, and the printed one is the median of the rounds. If a machine cannot run
something, the table says "not run" with the reason. `gpt2 verify` checks that our numbers are right. On PyTorch's side,
before timing, it compares each attention backend with plain f32, and pytorch_gpt2.py's GPT-2 with transformers'.
"""

import argparse
import copy
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

try:
    import torch
except ImportError as missing:
    print(f"error: {missing}; PyTorch comes with `{sys.executable} -m pip install torch`", file=sys.stderr)
    sys.exit(3)
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from bench.report import table
from bench.rows import GPT2_SMALL
from pytorch_gpt2 import GPT2, CausalSelfAttention

try:
    import transformers
except Exception:  # missing, or not made for this PyTorch: use pytorch_gpt2.py instead
    transformers = None

TINY = Path(__file__).resolve().parent.parent / "tests/data/odd"  # for --device cpu --quick
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
SIZES = [(1, 128), (1, 1024), (8, 1024), (32, 1024)]  # B, T
OURS = {"fused": "ours fused", "eager": "ours eager"}  # --impl: column
SDPA = {
    "sdpa flash": SDPBackend.FLASH_ATTENTION,
    "sdpa efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa cuDNN": SDPBackend.CUDNN_ATTENTION,
}
EAGER, COMPILE = "PyTorch eager", "PyTorch compile"
THEIRS = {"core": list(SDPA), "block": [EAGER, COMPILE], "forward": [EAGER, COMPILE], "decode": [EAGER]}
COLUMNS = [*OURS.values(), *SDPA, EAGER, COMPILE]
WARM_UP = 3
LIMIT_S = 600  # for one run of our binary


class Row(NamedTuple):
    """One line of the table."""

    group: str
    dtype: str
    batch: int
    tokens: int  # decode: those before the first timed step
    runs: int
    new_tokens: int  # 0 but for decode
    aim: float | None  # for ours / PyTorch: at most, or for decode's tokens/s at least, this


class NotRun(Exception):
    """Why a cell of the table stays empty."""


class PyTorch:
    """One method per group: it prepares a cell and returns a function that measures it, in milliseconds."""

    def __init__(self, device: str, shape: dict) -> None:
        self.device, self.shape, self.models = device, shape, {}

    def time(self, row: Row, run: Callable[[object], object], before: Callable[[], object] = lambda: None) -> float:
        """The median run; each gets what `before`, which is not timed, returns."""
        times = []
        for _ in range(WARM_UP + row.runs):
            state = before()
            if self.device == "cpu":
                began = time.perf_counter()
                run(state)
                times.append(1e3 * (time.perf_counter() - began))
            else:
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                torch.cuda.synchronize()
                start.record()
                run(state)
                end.record()
                end.synchronize()
                times.append(start.elapsed_time(end))
        return median(times[WARM_UP:])

    def random(self, row: Row, *shape: int) -> Tensor:
        torch.manual_seed(0)
        return (torch.rand(row.batch, row.tokens, *shape, device=self.device) * 2 - 1).to(DTYPES[row.dtype])

    def core(self, row: Row, column: str) -> Callable[[], float]:
        h, c = self.shape["n_head"], self.shape["n_embd"]
        q, k, v = (part.transpose(1, 2) for part in self.random(row, 3, h, c // h).unbind(2))  # (B, H, T, D)

        def run(_) -> Tensor:
            y = scaled_dot_product_attention(q, k, v, is_causal=True)
            return y.transpose(1, 2).reshape(row.batch, row.tokens, c)

        def measure() -> float:
            with sdpa_kernel(SDPA[column]):
                return self.time(row, run)

        with sdpa_kernel(SDPA[column]), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                y = run(None)[:1]
            except RuntimeError as error:  # PyTorch warns of each condition that does not hold
                raise NotRun("; ".join(first_line(one) for one in (error, *(w.message for w in said)))) from None
        with sdpa_kernel(SDPBackend.MATH):
            plain = scaled_dot_product_attention(q[:1].float(), k[:1].float(), v[:1].float(), is_causal=True)
        hold("its result is wrong", y, plain.transpose(1, 2).reshape(y.shape), row.dtype, roundings=4)
        return measure

    def block(self, row: Row, column: str) -> Callable[[], float]:
        block = CausalSelfAttention(self.shape["n_embd"], self.shape["n_head"]).to(self.device, DTYPES[row.dtype])
        block, x = compiled(block) if column == COMPILE else block, self.random(row, self.shape["n_embd"])  # (B, T, C)
        return lambda: self.time(row, lambda _: block(x))

    def forward(self, row: Row, column: str) -> Callable[[], float]:
        own, theirs = self.both(row.dtype)
        model = compiled(own) if column == COMPILE else own
        if theirs and column == EAGER:
            model = partial(theirs, use_cache=False, logits_to_keep=1)
        ids = self.ids(row)
        return lambda: self.time(row, lambda _: model(ids))

    def decode(self, row: Row, _: str) -> Callable[[], float]:
        own, theirs = self.both(row.dtype)

        def step(ids: Tensor, past) -> tuple:
            if theirs is None:
                past = past or [[] for _ in own.h]
                return own(ids, past).argmax(-1), past
            output = theirs(ids, past_key_values=past, use_cache=True, logits_to_keep=1)
            return output.logits.argmax(-1), output.past_key_values

        first, prompt = step(self.ids(row), None)  # (B, 1)

        def run(past) -> None:
            token = first
            for _ in range(row.new_tokens):
                token, past = step(token, past)

        return lambda: self.time(row, run, before=lambda: copy.deepcopy(prompt))

    def ids(self, row: Row) -> Tensor:
        """The ids that `gpt2 bench` uses, (B, T)."""
        ids = torch.arange(row.batch * row.tokens, device=self.device) * 7919 % self.shape["vocab_size"]
        return ids.view(row.batch, row.tokens)

    def both(self, dtype: str) -> tuple[GPT2, nn.Module | None]:
        """Our own GPT-2 in PyTorch and, if installed, transformers', with the same weights."""
        if dtype in self.models:
            return self.models[dtype]
        own, theirs = GPT2(**self.shape).to(self.device, DTYPES[dtype]), None
        if transformers:
            transformers.utils.logging.set_verbosity_error()
            theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(attn_implementation="sdpa", **self.shape))
            theirs = theirs.to(self.device, DTYPES[dtype]).eval()
            weights = theirs.transformer.state_dict()  # Conv1D holds (in, out), nn.Linear (out, in)
            turned = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
            own.load_state_dict({k: w.T if k.endswith(turned) else w for k, w in weights.items()})
            ids = torch.arange(16, device=self.device)[None]
            expected = theirs(ids, use_cache=False, logits_to_keep=1).logits
            hold("the GPT-2 of pytorch_gpt2.py differs from transformers'", own(ids), expected, dtype, roundings=16)
        self.models[dtype] = own, theirs
        return own, theirs


def compiled(module: nn.Module) -> Callable:
    """A newly compiled module: a second shape of the same code would become a dynamic one, and slower."""
    torch._dynamo.reset()
    return torch.compile(module)


def hold(what: str, got: Tensor, expected: Tensor, dtype: str, roundings: int) -> None:
    error = ((got.float() - expected.float()).abs().max() / expected.float().abs().max()).item()
    allowed = roundings * torch.finfo(DTYPES[dtype]).eps / 2
    if not error <= allowed:  # true for NaN too
        raise NotRun(f"{what}: relative error {error:.1e}, allowed is {allowed:.1e}")


def gpt2(args: argparse.Namespace, *arguments: object) -> str:
    """The output of our binary."""
    command = [str(args.binary), *map(str, arguments)]
    environment = os.environ | ({"LD_LIBRARY_PATH": args.library_path} if args.library_path else {})
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotRun(str(error)) from None
    if done.returncode != 0:
        raise NotRun(f"status {done.returncode}, {' '.join(done.stderr.split()) or 'no message'}")
    return done.stdout


def ours(args: argparse.Namespace, row: Row, implementation: str) -> dict:
    options = ["--batch", row.batch, "--tokens", row.tokens, "--dtype", row.dtype, "--runs", row.runs, "--seed", 0]
    options += ["--device", args.device, "--impl", implementation, *(["--model", TINY] if args.tiny else [])]
    options += {"forward": ["--last"], "decode": ["--new-tokens", row.new_tokens]}.get(row.group, [])
    found = json.loads(gpt2(args, "bench", row.group, "--json", *options))
    if found["impl"] != implementation:
        raise NotRun(f"the binary ran {found['impl']} in its place")
    value = found["tokens_per_s" if row.new_tokens else "median_ms"]
    return {"value": value, "timer": found.get("timer", "clock")}


def measure(args: argparse.Namespace, row: Row, pytorch: PyTorch) -> dict:
    """Measures the cells of a row: our binary, then PyTorch, in each round. Does not try a failed cell again."""
    prepared: dict[str, Callable[[], float]] = {}

    def theirs(column: str) -> dict:
        if column not in prepared:
            prepared[column] = getattr(pytorch, row.group)(row, column)
        ms = prepared[column]()
        return {"value": 1e3 * row.batch * row.new_tokens / ms if row.new_tokens else ms}

    work = {column: partial(ours, args, row, name) for name, column in OURS.items()}
    work |= {column: partial(theirs, column) for column in THEIRS[row.group]}
    cells: dict[str, dict] = {column: {"rounds": []} for column in work}
    for column in list(work) * args.rounds:
        if "not_run" not in cells[column]:
            try:
                one = work[column]()
                cells[column]["rounds"].append(one.pop("value"))
                cells[column] |= one
            except Exception as error:  # a backend, a compiler, the GPU's memory, our binary: continue with other cells
                kind = "" if isinstance(error, NotRun) else f"{type(error).__name__}: "
                cells[column]["not_run"] = kind + first_line(error)
            if args.device == "cuda":
                torch.cuda.empty_cache()  # our binary is a separate process and needs the memory
    for cell in cells.values():
        cell["median"] = None if "not_run" in cell else median(cell["rounds"])
    known = {column: cells[column]["median"] for column in THEIRS[row.group] if column != COMPILE}
    against = min((column for column in known if known[column]), key=known.get, default=None)
    fused = cells[OURS["fused"]]["median"]
    ratio = fused / known[against] if fused and against else None
    met = None if None in (ratio, row.aim) else ratio >= row.aim if row.new_tokens else ratio <= row.aim
    tokens = f"T {row.tokens} + {row.new_tokens}, tok/s" if row.new_tokens else f"T {row.tokens}, ms"
    title = f"{row.group}, {row.dtype}, B {row.batch}, {tokens}"
    return {"title": title, **row._asdict(), "cells": cells, "against": against, "ratio": ratio, "met": met}


def rows_of(args: argparse.Namespace) -> list[Row]:
    def row(group: str, dtype: str, b: int, t: int) -> Row:
        # Run short work more often: a GPU takes a while to leave its idle clock.
        many = {"core": 2**23, "block": 2**21, "forward": 2**18, "decode": 0}[group] // (b * t)
        runs = 3 if args.device == "cpu" else 20 if args.quick else min(max(many, 20), 500)
        new_tokens = 0 if group != "decode" else 4 if args.tiny else 64
        aims = {"core": 1.2 if b >= 8 else None, "block": 1.0, "forward": 0.7 if b == 1 else None, "decode": 2.0}
        return Row(group, dtype, b, t, runs, new_tokens, None if args.device == "cpu" else aims[group])

    sizes = [(1, 32)] if args.tiny else SIZES[:1] if args.quick else SIZES
    sizes_of = {group: sizes[:1] if group == "decode" else sizes for group in args.rows}
    return [row(group, dtype, *size) for dtype in args.dtypes for group in args.rows for size in sizes_of[group]]


def describe(args: argparse.Namespace) -> dict:
    own = "pytorch_gpt2.py"
    about = {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "machine": f"{platform.platform()}, {os.cpu_count()} CPUs",
        "binary": gpt2(args, "--version").strip(),
        "binary_sha256": hashlib.sha256(args.binary.read_bytes()).hexdigest(),
        "torch": torch.__version__,
        "models": {EAGER: f"transformers {transformers.__version__}" if transformers else own, COMPILE: own},
    }
    if args.device == "cpu":
        return about | {"gpu": "no GPU", "driver": None}
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    gpu = torch.cuda.get_device_properties(0)
    about |= {"gpu": gpu.name, "driver": driver, "capability": f"{gpu.major}.{gpu.minor}", "gpu_bytes": gpu.total_memory}
    return about | {"torch_cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}


def first_line(error: object) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def amount(value: float | None) -> str:
    return "not run" if value is None else f"{value:.{0 if value >= 100 else 2 if value >= 1 else 3}f}"


def line(row: dict) -> list[str]:
    cells = [amount(row["cells"][column]["median"]) if column in row["cells"] else "" for column in COLUMNS]
    ratio = amount(row["ratio"]) + (f" × {row['against']}" if row["ratio"] else "")
    aim = "" if row["aim"] is None else f"{'>=' if row['new_tokens'] else '<='} {row['aim']}"
    return [row["title"], *cells, ratio, aim, {True: "yes", False: "NO", None: ""}[row["met"]]]


def markdown(report: dict) -> str:
    about, verify = report["about"], report["verify"]
    rows = table(True, ["", *COLUMNS, "ratio", "aim", "met"], map(line, report["rows"]))
    head = f"{about['gpu']}, driver {about['driver']}, torch {about['torch']}, {about['binary']}, {about['date']}"
    lines = [head + (", QUICK" if report["quick"] else ""), "", rows]
    notes = [f"Forward and decode: {'; '.join(f'{column} is {model}' for column, model in about['models'].items())}."]
    if verify:
        found = f"{verify['checks'] - len(verify['failed'])} of {verify['checks']} paths within their tolerance"
        notes.append(f"`gpt2 verify`: {verify['error'] or found}. compute-sanitizer: {report['sanitizer']}.")
    cells = [(row["group"], *item) for row in report["rows"] for item in row["cells"].items()]
    notes += [f"Our times are from: {cell['timer']}." for _, _, cell in cells if "timer" in cell]
    notes += [f"Not run, {column}, {group}: {cell['not_run']}" for group, column, cell in cells if "not_run" in cell]
    return "\n".join(lines) + "".join(f"\n\n{note}" for note in dict.fromkeys(notes)) + "\n"


def verified(file: Path) -> dict:
    """A summary of the file that `gpt2 verify --json` wrote."""
    try:
        report = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        return {"passed": False, "error": f"no result, {first_line(error)}", "checks": 0, "failed": []}
    failed = [check for check in report["checks"] if not check["passed"]]
    return {"passed": report["passed"], "error": None, "checks": len(report["checks"]), "failed": failed}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--binary", type=Path, required=True, metavar="PATH", help="the gpt2 to time")
    add("--device", choices=["cuda", "cpu"], default="cuda")
    add("--rows", nargs="+", choices=THEIRS, default=list(THEIRS), help="default: all")
    add("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES), help="default: both")
    add("--rounds", type=int, metavar="N", help="default: 3, with --quick 1")
    add("--quick", action="store_true", help="only B 1, T 128, and few runs; on the CPU a tiny model")
    add("--json", type=Path, metavar="FILE", help="write all results")
    add("--markdown", type=Path, metavar="FILE", help="write the table for the README")
    add("--verify", type=Path, metavar="FILE", help="the output of `gpt2 verify --json`, to summarise below the rows")
    add("--sanitizer", metavar="TEXT", default="not run", help="the findings of compute-sanitizer, likewise")
    add("--library-path", metavar="DIRS", help="LD_LIBRARY_PATH for the binary; PyTorch uses its own libraries")
    args = parser.parse_args()
    args.binary, args.tiny = args.binary.resolve(), args.quick and args.device == "cpu"
    args.rounds = args.rounds or (1 if args.quick else 3)
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.exit(3, f"error: PyTorch {torch.__version__} finds no GPU; it must be a CUDA build that fits the driver\n")
    return args


def main() -> int:
    args = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, which ends our binary, too
    config = json.loads((TINY / "config.json").read_text()) if args.tiny else GPT2_SMALL
    pytorch, rows = PyTorch(args.device, {key: config[key] for key in GPT2_SMALL}), []
    try:
        report = {"about": describe(args), "shape": pytorch.shape, "rounds": args.rounds, "quick": args.quick}
        report |= {"verify": args.verify and verified(args.verify), "sanitizer": args.sanitizer, "rows": rows}
        with torch.inference_mode():
            for row in rows_of(args):
                rows.append(measure(args, row, pytorch))
                print("  ".join(cell or "-" for cell in line(rows[-1])), file=sys.stderr, flush=True)
        for file, text in ((args.json, json.dumps(report, indent=2) + "\n"), (args.markdown, markdown(report))):
            if file:
                scratch = file.with_name(f"{file.name}.part")
                scratch.write_text(text)
                scratch.replace(file)  # write the whole file or nothing
                print(f"wrote {file}", file=sys.stderr)
        print(markdown(report), end="")
    except (NotRun, OSError, subprocess.SubprocessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 1 if any("not_run" in row["cells"][OURS["fused"]] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
