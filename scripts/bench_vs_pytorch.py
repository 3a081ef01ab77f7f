#!/usr/bin/env python3
"""Time the `gpt2` binary and PyTorch in turn, on this machine, and print the ratios beside the aims.

    cargo build --release --workspace
    pip install -r scripts/requirements.txt
    python scripts/bench_vs_pytorch.py                              the table: f32, three rounds
    python scripts/bench_vs_pytorch.py --rows core,decode --markdown
    python scripts/bench_vs_pytorch.py --sweep --plot core.png      core over T: time and memory
    python scripts/bench_vs_pytorch.py --threads-sweep              1, 2, 4 and 8 threads
    python scripts/bench_vs_pytorch.py --json > bench.json
    python scripts/bench_vs_pytorch.py --quick                      tiny sizes: does it run?

PyTorch runs transformers' GPT-2 with sdpa attention in torch.inference_mode. Each side does one run that
is not counted, then timed ones; a round's number is their median, and the printed number is the median of
the rounds. The sides take turns at going first. A training step is forward, backward and fused AdamW with
dropout 0.1, which PyTorch's sdpa on the CPU computes in plain operations, in fresh processes: time and peak memory. Other whole-model rows run on one checkpoint, GPT-2 small's
shape with seeded random weights, and nothing is timed unless both sides compute the same logits and the
same greedy ids from it. A program at work beside them distorts both sides, PyTorch's spinning threads
most of all (ten times slower, not two): such rounds are marked and not counted. Linux only.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import NamedTuple

# This process imports neither torch nor matplotlib while it measures: a child's peak memory, as Linux
# counts it, is never less than what its parent held when it forked.

ROOT = Path(__file__).resolve().parent.parent
TOLERANCE = 3e-5
QUIET_CPUS = 0.15  # a round in which other programs use more is disturbed
QUIET_S = 0.3  # libgomp's threads spin for about 5 ms after their last work
GPT2_SMALL = dict(vocab_size=50257, n_positions=1024, n_embd=768, n_layer=12, n_head=12)
QUICK = GPT2_SMALL | dict(n_embd=96, n_layer=2)
INSTALL = "pip install -r scripts/requirements.txt"
SIDES = ("ours", "pytorch")


# --- rows -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One line of the table: what both sides do."""

    group: str  # core, block, forward, decode, start, memory, train or train-memory
    aim: float = 0.0  # ours / PyTorch
    batch: int = 1
    tokens: int = 1024  # decode: those before the first timed step
    last: bool = False
    runs: int = 3
    new_tokens: int = 32
    theirs: str = "sdpa"  # PyTorch's attention
    peak_aim: float | None = None  # of the machine's multiply-adds or memory bandwidth

    @property
    def title(self) -> str:
        b, t, logits = self.batch, self.tokens, "last logits" if self.last else "all logits"
        titles = {
            "forward": f"forward, T {t}, {logits}",
            "decode": f"decode after {t} tokens",
            "start": "process start to first token",
            "memory": f"peak memory, forward, T {t}, {logits}",
            "train": f"training step, B {b}, T {t}, against {self.theirs}",
            "train-memory": f"peak memory, training, B {b}, T {t}, against {self.theirs}",
        }
        return titles.get(self.group, f"{self.group}, B {b}, T {t}")

    @property
    def unit(self) -> str:
        return {"decode": "tok/s", "start": "s", "memory": "GB", "train-memory": "GB"}.get(self.group, "ms")

    @property
    def needs_checkpoint(self) -> bool:
        return self.group not in ("core", "block", "train", "train-memory")


ROWS = [
    Row("core", 0.55, runs=25, peak_aim=0.70),
    Row("core", 0.60, batch=8, tokens=128, runs=75),
    Row("core", 0.70, tokens=4096, runs=5),
    Row("block", 0.72, runs=15),
    Row("block", 0.75, batch=8, tokens=128, runs=15),
    Row("forward", 0.60),
    Row("forward", 0.60, last=True),
    Row("forward", 0.58, tokens=128, last=True, runs=9),
    Row("decode", 3.2, tokens=16, peak_aim=0.75),
    Row("decode", 3.0, tokens=900, peak_aim=0.75),
    Row("start", 0.09, tokens=16),
    Row("memory", 0.40, last=True, runs=1),
    *(
        Row(group, aim, batch=4, tokens=256, theirs=theirs)
        for theirs in ("sdpa", "eager")
        for group, aim in (("train", 0.80), ("train-memory", 0.70))
    ),
]
GROUPS = list(dict.fromkeys(row.group for row in ROWS))
THREAD_ROWS = [ROWS[i] for i in (0, 3, 7, 8)]
THREADS = [1, 2, 4, 8]
LENGTHS = [64 << i for i in range(8)]  # 64 to 8192


def prompt(count: int, vocab_size: int) -> list[int]:
    """The ids that `gpt2 bench` uses, spread over the vocabulary."""
    return [i * 7919 % vocab_size for i in range(count)]


# --- the PyTorch side -------------------------------------------------------------------------

FRESH_MODEL = """
import json, sys, torch
from transformers import GPT2LMHeadModel
folder, threads, ids = sys.argv[1], int(sys.argv[2]), torch.tensor([json.loads(sys.argv[3])])
torch.set_num_threads(threads)
model = GPT2LMHeadModel.from_pretrained(folder, attn_implementation="sdpa").eval()
"""
FRESH_START = FRESH_MODEL + """
mask = torch.ones_like(ids)
with torch.inference_mode():
    model.generate(ids, attention_mask=mask, max_new_tokens=1, do_sample=False, pad_token_id=0)
"""
FRESH_FORWARD = FRESH_MODEL + """
with torch.inference_mode():
    model(ids, use_cache=False, logits_to_keep=1)
"""
FRESH_CORE = """
import sys, torch
threads, t, h, d = (int(arg) for arg in sys.argv[1:])
torch.set_num_threads(threads)
q, k, v = (part.transpose(1, 2) for part in (torch.rand(1, t, 3, h, d) * 2 - 1).unbind(2))
with torch.inference_mode():
    for _ in range(2):
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
"""

FRESH_TRAIN = """
import statistics, sys, time, torch
from transformers import GPT2Config, GPT2LMHeadModel
threads, batch, tokens, runs, attention = *(int(arg) for arg in sys.argv[1:5]), sys.argv[5]
torch.set_num_threads(threads)
torch.manual_seed(0)
config = GPT2Config(attn_implementation=attention)
model = GPT2LMHeadModel(config).train()
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
ids = torch.randint(config.vocab_size, (batch, tokens))
times = []
for _ in range(1 + runs):
    start = time.perf_counter()
    optimiser.zero_grad()
    model(ids, labels=ids, use_cache=False).loss.backward()
    optimiser.step()
    times.append(1e3 * (time.perf_counter() - start))
print(statistics.median(times[1:]))
"""


class TorchSide:
    """What the worker process can be asked for: each public method is one request."""

    def __init__(self) -> None:
        import torch
        import transformers

        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()
        self.torch, self.transformers, self.model = torch, transformers, None

    def versions(self) -> dict[str, str]:
        return {"torch": self.torch.__version__, "transformers": self.transformers.__version__}

    def write_checkpoint(self, folder: str, shape: dict, misaligned: bool) -> int:
        """A checkpoint with f32 mask buffers, as GPT-2's own has them; returns its size in bytes."""
        from compare_with_transformers import misalign, write_tensors
        from make_reference import build_model, mask_buffers

        model = build_model(seed=0, **shape)
        tensors = model.state_dict() | mask_buffers(model.config, self.torch.float32)
        left_out = ("lm_head.weight", ".attn.masked_bias")
        file = write_tensors(model, Path(folder), {k: v for k, v in tensors.items() if not k.endswith(left_out)})
        if misaligned:
            misalign(file)
        loader = self.transformers.GPT2LMHeadModel
        self.model = loader.from_pretrained(folder, attn_implementation="sdpa").eval()
        return file.stat().st_size

    def agree(self, exported: str, ids: list[int], new_ids: int) -> dict:
        """The largest relative error of the exported logits, and the ids that follow greedily here."""
        import safetensors.torch
        from compare_with_transformers import relative_error

        tensor = self.torch.tensor([ids])
        with self.torch.inference_mode():
            logits = self.model(tensor, use_cache=False).logits
            cache, first = self._prefill(tensor)
            found = [first, *self._steps(cache, first, new_ids - 1)]
        error = relative_error(safetensors.torch.load_file(exported)["logits"], logits)
        return {"logits": error, "new_ids": [token.item() for token in found]}

    def time(self, row: dict, threads: int) -> float:
        """Median milliseconds of a run."""
        spec = Row(**row)
        self.torch.set_num_threads(threads)
        self.torch.manual_seed(0)
        times = []
        with self.torch.inference_mode():
            work = getattr(self, f"_{spec.group}")(spec)
            for _ in range(1 + spec.runs):
                start = time.perf_counter()
                work()
                times.append(1e3 * (time.perf_counter() - start))
        return median(times[1:])

    def _core(self, row: Row) -> Callable[[], object]:
        h, c = GPT2_SMALL["n_head"], GPT2_SMALL["n_embd"]
        qkv = self.torch.rand(row.batch, row.tokens, 3, h, c // h) * 2 - 1  # as c_attn leaves them
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))  # (B, H, T, D)
        attention = self.torch.nn.functional.scaled_dot_product_attention
        return lambda: attention(q, k, v, is_causal=True)

    def _block(self, row: Row) -> Callable[[], object]:
        config = self.transformers.GPT2Config(attn_implementation="sdpa", **GPT2_SMALL)
        block = self.transformers.models.gpt2.modeling_gpt2.GPT2Attention(config, layer_idx=0).eval()
        x = self.torch.rand(row.batch, row.tokens, config.n_embd) * 2 - 1  # (B, T, C)
        return lambda: block(x)

    def _ids(self, row: Row):
        ids = prompt(row.batch * row.tokens, self.model.config.vocab_size)
        return self.torch.tensor(ids).view(row.batch, row.tokens)  # (B, T)

    def _forward(self, row: Row) -> Callable[[], object]:
        ids, keep = self._ids(row), 1 if row.last else 0
        return lambda: self.model(ids, use_cache=False, logits_to_keep=keep)

    def _decode(self, row: Row) -> Callable[[], object]:
        cache, first = self._prefill(self._ids(row))

        def steps() -> None:
            cache.crop(row.tokens - cache.get_seq_length())  # takes minus the number of tokens to remove
            self._steps(cache, first, row.new_tokens)

        return steps

    def _prefill(self, ids):
        cache = self.transformers.DynamicCache(config=self.model.config)
        return cache, self.model(ids, past_key_values=cache, logits_to_keep=1).logits.argmax(-1)  # (B, 1)

    def _steps(self, cache, token, count: int) -> list:
        tokens = []
        for _ in range(count):
            token = self.model(token, past_key_values=cache, logits_to_keep=1).logits.argmax(-1)  # (B, 1)
            tokens.append(token)
        return tokens


def worker() -> None:
    """Answer requests, a JSON line each, until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when this ends
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    side = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            side = side or TorchSide()
            answer = {"result": getattr(side, request["call"])(**request["arguments"])}
        except Exception as error:  # whatever it is, the parent reports it
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


# --- processes --------------------------------------------------------------------------------


class Failure(Exception):
    """What went wrong and what to do about it."""


class Done(NamedTuple):
    stdout: str
    seconds: float
    peak_bytes: int


# Python may keep its bytecode, or PyTorch's start would be one long compilation; no network is needed.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"HF_HUB_OFFLINE": "1"}


def run(*command: object) -> Done:
    """A fresh process, start to end: its output, wall-clock time and peak resident memory."""
    words = [str(word) for word in command]
    pipes = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=ENVIRONMENT)
    with tempfile.TemporaryFile("w+") as stderr:
        start = time.perf_counter()
        # preexec_fn makes it a fork: the peak of a vforked child would begin at this process's own.
        child = subprocess.Popen(words, stderr=stderr, preexec_fn=lambda: None, **pipes)
        try:
            with child.stdout:
                stdout = child.stdout.read()
            _, status, usage = os.wait4(child.pid, 0)
            seconds = time.perf_counter() - start
            child.returncode = os.waitstatus_to_exitcode(status)
        finally:
            if child.returncode is None:
                child.kill()
                child.wait()
        if child.returncode != 0:
            stderr.seek(0)
            last = (stderr.read().strip().splitlines() or ["no message"])[-1]
            shown = " ".join(word if len(word) < 80 else "..." for word in words)
            raise Failure(f"`{shown}` ended with status {child.returncode}: {last}")
    return Done(stdout, seconds, 1024 * usage.ru_maxrss)


class TorchWorker:
    """The PyTorch process that stays alive between rounds; a call runs a method of TorchSide in it."""

    def __init__(self) -> None:
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
        self.process = subprocess.Popen([sys.executable, "-B", __file__, "--worker"], **pipes)

    def __call__(self, call: str, **arguments: object):
        try:
            print(json.dumps({"call": call, "arguments": arguments}), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise Failure(f"the PyTorch process ended during {call}, with status {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise Failure(f"PyTorch, {call}: {answer['error']}\nversions that work: {INSTALL}")
        return answer["result"]


def busy_seconds() -> float:
    """CPU time that all programs have used since the machine started, and what its host took away."""
    ticks = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")  # without idle and waiting for the disk


# --- one measurement --------------------------------------------------------------------------


class Bench(NamedTuple):
    binary: Path
    pytorch: TorchWorker
    shape: dict
    folder: Path  # the checkpoint

    def gpt2(self, command: str, threads: int, *options: object) -> Done:
        return run(self.binary, *command.split(), "--threads", threads, *options)

    def generate(self, ids: list[int], count: int, threads: int) -> Done:
        options = ["--model", self.folder, "--ids", ",".join(map(str, ids)), "--max-new-tokens", count]
        return self.gpt2("generate --greedy --json", threads, *options)

    def ours(self, row: Row, threads: int) -> float:
        if row.group == "start":
            ids = prompt(row.tokens, self.shape["vocab_size"])
            return median([self.generate(ids, 1, threads).seconds for _ in range(1 + row.runs)][1:])
        options = ["--batch", row.batch, "--tokens", row.tokens, "--runs", row.runs]
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
            return run(sys.executable, "-c", code, self.folder, threads, json.dumps(ids))

        if row.group == "start":
            return median([fresh(FRESH_START).seconds for _ in range(1 + row.runs)][1:])
        if row.group == "memory":
            return fresh(FRESH_FORWARD).peak_bytes / 1e9
        if row.group in ("train", "train-memory"):
            done = run(sys.executable, "-c", FRESH_TRAIN, threads, row.batch, row.tokens, row.runs, row.theirs)
            return float(done.stdout) if row.group == "train" else done.peak_bytes / 1e9
        ms = self.pytorch("time", row=asdict(row), threads=threads)
        return 1e3 * row.batch * row.new_tokens / ms if row.group == "decode" else ms

    def rounds(self, row: Row, threads: int, numbers: Iterable[int]) -> list[dict]:
        """Both sides in turn, and their ratio; who goes first alternates from round to round."""
        found = []
        for number in numbers:
            one, others = {}, []
            for side in SIDES if number % 2 == 0 else SIDES[::-1]:
                measure_side = self.ours if side == "ours" else self.theirs
                one[side], cpus = self.watch(lambda: measure_side(row, threads))
                others.append(cpus)
            one |= {"ratio": one["ours"] / one["pytorch"], "others_cpus": max(others)}
            found.append(one)
            shown = f"{amount(one['ours'], row.unit)}, PyTorch {amount(one['pytorch'], row.unit)}"
            note = "" if is_quiet(one) else f"  DISTURBED: others used {max(others):.1f} CPUs"
            progress(f"round {number + 1}, {row.title}, {threads} threads: {shown}, {one['ratio']:.3f}{note}")
        return found

    def watch(self, work: Callable[[], object]) -> tuple:
        """Wait until both sides' threads sleep, do the work; also how many CPUs others used meanwhile."""
        start, before = time.perf_counter(), self.others_seconds()
        time.sleep(QUIET_S)
        result = work()
        return result, (self.others_seconds() - before) / (time.perf_counter() - start)

    def others_seconds(self) -> float:
        """CPU time of every program but this script and what it runs."""
        stat = Path(f"/proc/{self.pytorch.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        pytorch = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
        return busy_seconds() - pytorch - sum(os.times()[:4])  # this process and its ended children

    def core_memory(self, tokens: int, threads: int) -> dict[str, int]:
        """Peak bytes of a fresh process that does nothing but attention."""
        h, c = GPT2_SMALL["n_head"], GPT2_SMALL["n_embd"]
        ours = self.gpt2("bench core --runs 1", threads, "--tokens", tokens)
        theirs = run(sys.executable, "-c", FRESH_CORE, threads, tokens, h, c // h)
        return {"ours": ours.peak_bytes, "pytorch": theirs.peak_bytes}


def is_quiet(one: dict) -> bool:
    return one["others_cpus"] <= QUIET_CPUS


def medians(rounds: list[dict]) -> dict:
    """Over the undisturbed rounds, where there are any."""
    quiet = [one for one in rounds if is_quiet(one)]
    result = {key: median(one[key] for one in quiet or rounds) for key in (*SIDES, "ratio")}
    return result | {"disturbed": not quiet, "rounds": rounds}


def check_agreement(bench: Bench, threads: int) -> dict:
    """Both sides' logits and greedy ids on the checkpoint; refuses to go on where they differ."""
    ids = prompt(20, bench.shape["vocab_size"])
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "export.safetensors"
        listed = ",".join(map(str, ids))
        bench.gpt2("forward", threads, "--model", bench.folder, "--ids", listed, "--export", file)
        ours = json.loads(bench.generate(ids, 8, threads).stdout)["ids"]
        found = bench.pytorch("agree", exported=str(file), ids=ids, new_ids=len(ours))
    if not found["logits"] <= TOLERANCE:  # true for NaN too
        raise Failure(f"nothing was timed: logits differ by {found['logits']:.1e}, allowed is {TOLERANCE}")
    if found["new_ids"] != ours:
        raise Failure(f"nothing was timed: greedy ids are {ours}, but {found['new_ids']} in transformers")
    progress(f"both sides compute the same: logits within {found['logits']:.1e}, {len(ours)} greedy ids equal")
    return found


# --- what is measured -------------------------------------------------------------------------


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
            result["peak"], giga = work(row, bench.shape)
            known = [one[result["peak"]] for one in machine_peaks if one[result["peak"]] and is_quiet(one)]
            result["peak_range"] = [min(known), max(known)] if known else None
            for side in SIDES:
                per_s = result[side] if row.group == "decode" else 1e3 / result[side]
                result[f"{side}_of_peak"] = giga * per_s / max(known) if known else None
        results.append(result)
    return {"rows": results, "peaks": machine_peaks}


def work(row: Row, shape: dict) -> tuple[str, float]:
    """The limit that a row runs into, and 10⁹ operations of core, or 10⁹ bytes read for a decoded token."""
    if row.group == "core":
        return "fma_gflops", 4e-9 * row.batch * GPT2_SMALL["n_embd"] * row.tokens * (row.tokens + 1) / 2
    c, layers = shape["n_embd"], shape["n_layer"]
    parameters = layers * (12 * c * c + 13 * c) + 2 * c + shape["vocab_size"] * c  # h, ln_f, lm_head
    keys = row.tokens + (row.new_tokens + 1) / 2  # on average over the steps
    return "read_gb_s", 4e-9 * (parameters + 2 * layers * keys * c)


def measure_sweep(bench: Bench, lengths: list[int], rounds: int, threads: int) -> list[dict]:
    """Core over T; T = 1 shows what a process holds before it computes anything."""
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


# --- output -----------------------------------------------------------------------------------


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def amount(value: float, unit: str = "") -> str:
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:.{digits}f} {unit}".rstrip()


def both(one: dict, unit: str) -> list[str]:
    return [amount(one[side], unit) for side in SIDES]


def ratio(one: dict, disturbed: bool) -> str:
    return amount(one["ratio"]) + ("*" if disturbed else "")


def table(markdown: bool, head: list[str], lines: Iterable[list[str]]) -> str:
    cells = [head, *lines]
    if markdown:
        cells.insert(1, ["---"] * len(head))
        return "\n".join(f"| {' | '.join(line)} |" for line in cells)
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    padded = ([c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(line, widths))] for line in cells)
    return "\n".join("  ".join(line).rstrip() for line in padded)


def row_cells(row: dict) -> list[str]:
    aim = f"{'>=' if row['group'] == 'decode' else '<='} {row['aim']:.2f}"
    each = " ".join(ratio(one, not is_quiet(one)) for one in row["rounds"])
    met = {True: "yes", False: "NO", None: "disturbed"}[row["met"]]
    return [row["title"], *both(row, row["unit"]), ratio(row, row["disturbed"]), each, aim, met]


def peak_line(row: dict) -> str:
    """Parts of the best that the machine showed; where its rounds differ much, so do these parts."""
    of, unit = {"fma_gflops": ("multiply-adds", "GFLOP/s"), "read_gb_s": ("memory reads", "GB/s")}[row["peak"]]
    if row["peak_range"] is None:
        return f"{row['title']}: part of the machine's {of} not measured"
    low, high = (amount(peak) for peak in row["peak_range"])
    ours, theirs = row["ours_of_peak"], row["pytorch_of_peak"]
    return (
        f"{row['title']}: {ours:.0%} of the machine's {of} (aim {row['peak_aim']:.0%}), PyTorch {theirs:.0%}; "
        f"rounds measured {low} to {high} {unit}"
    )


def sweep_cells(one: dict) -> list[str]:
    times = [*both(one, "ms"), ratio(one, one["disturbed"])] if "ratio" in one else ["-"] * 3
    above = one.get("above_t1")
    memory = [[amount(one["peak_bytes"][s] / 1e6, "MB"), amount(above[s] / 1e6, "MB") if above else "-"] for s in SIDES]
    return [str(one["tokens"]), *times, *memory[0], *memory[1]]


def thread_cells(one: dict) -> list[str]:
    ours, theirs = both(one, one["unit"])
    speeds = [f"{one[f'{side}_speed']:.2f} x" for side in SIDES]
    return [one["title"], str(one["threads"]), ours, speeds[0], theirs, speeds[1], ratio(one, one["disturbed"])]


def render(report: dict, markdown: bool) -> str:
    machine = report["machine"]
    wide = next((name for name in ("avx512f", "avx2", "asimd") if name in machine["flags"]), "no vector flags")
    parts = [
        f"{machine['cores']} cores of {machine['cpu']} ({wide}), f32, {report['threads']} threads, "
        f"torch {machine['torch']}, transformers {machine['transformers']}, {machine['date']}, "
        f"revision {machine['revision']}; rounds: {report['rounds']}" + ("; QUICK" if report["quick"] else "")
    ]
    if "+cu" in machine["torch"] and ("rows" in report or "sweep" in report):
        parts.append("PyTorch is a CUDA build: as a process it starts later and holds more than a CPU build would.")
    if "rows" in report:
        head = ["", "ours", "PyTorch", "ratio", "each round", "aim", "met"]
        parts.append(table(markdown, head, map(row_cells, report["rows"])))
        parts += [peak_line(row) for row in report["rows"] if row["peak_aim"]]
    if "sweep" in report:
        head = ["core, T", "ours", "PyTorch", "ratio", "our peak", "above T = 1", "PyTorch's peak", "above T = 1"]
        parts.append(table(markdown, head, map(sweep_cells, report["sweep"])))
    if "threads_sweep" in report:
        head = ["", "threads", "ours", "speed", "PyTorch", "speed", "ratio"]
        parts.append(table(markdown, head, map(thread_cells, report["threads_sweep"])))
    text = "\n\n".join(parts)
    return text + ("\n\n* disturbed by another program; counted only where no round was quiet" if "*" in text else "")


def draw(report: dict, file: Path) -> None:
    """Two panels, both logarithmic: time beside T², memory beside T."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    points = [one for one in report["sweep"] if "ratio" in one]
    ts = [one["tokens"] for one in points]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5.4), layout="constrained")
    for side, label, colour in (("ours", "gpt2", "tab:red"), ("pytorch", "PyTorch sdpa", "tab:blue")):
        left.plot(ts, [one[side] for one in points], "o-", color=colour, label=label)
        above = [max(one["above_t1"][side] / 1e6, 0.1) for one in points]
        right.plot(ts, above, "o-", color=colour, label=f"{label}, above T = 1")
        whole = [one["peak_bytes"][side] / 1e6 for one in points]
        right.plot(ts, whole, ":", color=colour, label=f"{label}, whole process")
    last = points[-1]
    for axis, power, end in ((left, 2, last["ours"]), (right, 1, last["above_t1"]["ours"] / 1e6)):
        label = "proportional to T" + ("²" if power == 2 else "")
        axis.plot(ts, [0.6 * end * (t / ts[-1]) ** power for t in ts], "--", color="grey", label=label)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(ts, [str(t) for t in ts])
        axis.set_xlabel("T (tokens)")
        axis.grid(alpha=0.3)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3, fontsize=9, frameon=False)
    left.set(title="causal attention, B 1, H 12, D 64, f32", ylabel="milliseconds")
    right.set(title="peak resident memory of a fresh process", ylabel="MB")
    machine = report["machine"]
    about = f"{machine['cpu']}, {report['threads']} threads, torch {machine['torch']}, {machine['date']}"
    about += "; DISTURBED by another program" if any(one["disturbed"] for one in points) else ""
    figure.suptitle(about, fontsize=10)
    figure.savefig(file, dpi=130)


# --- main -------------------------------------------------------------------------------------


def parse() -> argparse.Namespace:
    epilog = "With a sweep, the table runs only where --rows asks for it."
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog=epilog)
    add = parser.add_argument
    add("--rows", metavar="A,B", help=f"which rows: {','.join(GROUPS)} (default: all)")
    add("--sweep", action="store_true", help="core over T: time, and peak memory of a fresh process each")
    add("--plot", type=Path, metavar="FILE", help="with --sweep: write a PNG")
    add("--threads-sweep", action="store_true", help="1, 2, 4 and 8 threads")
    add("--rounds", type=int, metavar="N", help="default: 3, with --quick 1")
    add("--threads", type=int, metavar="N", default=len(os.sched_getaffinity(0)), help="default: all cores")
    add("--quick", action="store_true", help="tiny sizes: the numbers mean nothing")
    add("--misaligned", action="store_true", help="a checkpoint whose data begins at byte 4n + 3, as in GPT-2's own")
    add("--peak-gflops", type=float, metavar="X", help="multiply-adds (default: what `gpt2 bench machine` measures)")
    add("--read-gb-s", type=float, metavar="X", help="memory bandwidth (default: the same)")
    add("--binary", type=Path, default=ROOT / "target/release/gpt2", metavar="PATH", help="the gpt2 to time")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON document")
    form.add_argument("--markdown", action="store_true", help="print tables for the README")
    args = parser.parse_args()

    args.rows = args.rows.split(",") if args.rows else [] if args.sweep or args.threads_sweep else GROUPS
    args.rounds = (1 if args.quick else 3) if args.rounds is None else args.rounds
    args.binary = args.binary.resolve()
    if unknown := [name for name in args.rows if name not in GROUPS]:
        parser.error(f"--rows: no {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    if args.rounds < 1 or args.threads < 1:
        parser.error("--rounds and --threads begin at 1")
    if args.plot and not args.sweep:
        parser.error("--plot draws what --sweep measures")
    needed = ["torch", "transformers", "safetensors"] + (["matplotlib"] if args.plot else [])
    if missing := [name for name in needed if find_spec(name) is None]:
        parser.error(f"{sys.executable} has no {', '.join(missing)}; `{INSTALL}` installs what is missing")
    if not args.binary.is_file():
        parser.error(f"{args.binary} does not exist; `cargo build --release --workspace` makes it")
    return args


def shrink(row: Row) -> Row:
    """The row of --quick."""
    return replace(row, tokens=max(8, row.tokens // 16), runs=min(row.runs, 2), new_tokens=4)


def measure(args: argparse.Namespace, bench: Bench) -> dict:
    """Everything that was asked for, as the document that --json prints."""
    rows = [row for row in ROWS if row.group in args.rows]
    thread_rows = THREAD_ROWS if args.threads_sweep else []
    if args.quick:
        # A training step is that of the whole model at any number of tokens.
        rows, thread_rows = [shrink(row) for row in rows if row.group[:5] != "train"], [shrink(row) for row in thread_rows]
    report: dict = {"machine": describe_machine() | bench.pytorch("versions")}
    report |= {name: getattr(args, name) for name in ("threads", "rounds", "quick", "misaligned")}
    if any(row.needs_checkpoint for row in [*rows, *thread_rows]):
        progress("writing a checkpoint")
        options = dict(folder=str(bench.folder), shape=bench.shape, misaligned=args.misaligned)
        report["checkpoint_bytes"] = bench.pytorch("write_checkpoint", **options)
        report["agreement"] = check_agreement(bench, args.threads)

    def peaks() -> dict:
        given = {"fma_gflops": args.peak_gflops, "read_gb_s": args.read_gb_s, "others_cpus": 0.0}
        if None in given.values() and any(row.peak_aim for row in rows):
            try:
                done, others = bench.watch(lambda: bench.gpt2("bench machine --json", args.threads))
                measured = json.loads(done.stdout) | {"others_cpus": others}
                return {key: value or measured[key] for key, value in given.items()}
            except (Failure, KeyError, ValueError) as error:
                progress(f"peaks not measured, give --peak-gflops and --read-gb-s: {error}")
        return given

    if rows:
        report |= measure_rows(bench, rows, args.rounds, args.threads, peaks)
    if args.sweep:
        report["sweep"] = measure_sweep(bench, LENGTHS[:3] if args.quick else LENGTHS, args.rounds, args.threads)
    if args.threads_sweep:
        report["threads_sweep"] = measure_threads(bench, thread_rows, args.rounds)
    return report


def main() -> int:
    args = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds: no process and no folder stays
    try:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench_vs_pytorch-")))
            pytorch = TorchWorker()
            stack.enter_context(pytorch.process)  # waits for its end, after the kill
            stack.callback(pytorch.process.kill)
            report = measure(args, Bench(args.binary, pytorch, QUICK if args.quick else GPT2_SMALL, folder))
        print(json.dumps(report, indent=2) if args.json else render(report, args.markdown))
        if args.plot:
            draw(report, args.plot)
            progress(f"wrote {args.plot}")
    except (Failure, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(worker() if sys.argv[1:] == ["--worker"] else main())
