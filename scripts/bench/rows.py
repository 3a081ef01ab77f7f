"""The rows of the table of comparisons, with their aims."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The largest relative difference of logits between both sides. Halves are rounded after other operations here and there.
TOLERANCES = {"f32": 3e-5, "f16": 0.02, "bf16": 0.1}
TORCH_DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
# What holds each side to an instruction set.
ISAS = {
    "avx2": {
        "GPT2_ISA": "avx2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
    },
}
QUIET_CPUS = 0.15  # a round in which other programs use more is disturbed
QUIET_S = 0.3  # libgomp's threads spin for about 5 ms after their last work
GPT2_SMALL = dict(vocab_size=50257, n_positions=1024, n_embd=768, n_layer=12, n_head=12)
QUICK = GPT2_SMALL | dict(n_embd=96, n_layer=2)
INSTALL = "pip install -r scripts/requirements.txt"
SIDES = ("ours", "pytorch")


@dataclass(frozen=True)
class Row:
    """One line of the table: the work of both sides."""

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
    def trains(self) -> bool:
        return self.group in ("train", "train-memory")

    @property
    def needs_checkpoint(self) -> bool:
        return self.group not in ("core", "block") and not self.trains


ROWS = [
    Row("core", 0.55, runs=25, peak_aim=0.75),
    Row("core", 0.55, batch=8, tokens=128, runs=75),
    Row("core", 0.70, tokens=4096, runs=5),
    Row("block", 0.72, runs=15),
    Row("block", 0.72, batch=8, tokens=128, runs=15),
    Row("forward", 0.65),
    Row("forward", 0.62, last=True),
    Row("forward", 0.62, tokens=128, last=True, runs=9),
    Row("decode", 2.78, tokens=16, peak_aim=0.90),
    Row("decode", 2.78, tokens=900, peak_aim=0.90),
    Row("start", 0.09, tokens=16),
    Row("memory", 0.42, last=True, runs=1),
    *(
        Row(group, aim, batch=4, tokens=256, theirs=theirs)
        for theirs in ("sdpa", "eager")
        for group, aim in (("train", 0.75), ("train-memory", 0.70))
    ),
]
GROUPS = list(dict.fromkeys(row.group for row in ROWS))
THREAD_ROWS = [ROWS[i] for i in (0, 3, 7, 8)]
THREADS = [1, 2, 4, 8]
LENGTHS = [64 << i for i in range(8)]  # 64 to 8192


def prompt(count: int, vocab_size: int) -> list[int]:
    """The ids that `gpt2 bench` uses, spread over the vocabulary."""
    return [i * 7919 % vocab_size for i in range(count)]
