"""The rows of the table, the most important first, with their columns and aims."""

from typing import NamedTuple

FUSED, PLAIN, GRAPHED = "ours fused", "ours eager", "ours graph"
OURS = {FUSED: "fused", PLAIN: "eager"}  # column: --impl
SDPA = ["sdpa flash", "sdpa efficient", "sdpa cuDNN"]
EAGER, TRANSFORMERS, COMPILE, GRAPH = "PyTorch eager", "transformers", "PyTorch compile", "PyTorch graph"
WHOLE = [EAGER, TRANSFORMERS, COMPILE]
STEPS = [EAGER, TRANSFORMERS, GRAPH, COMPILE]
# PyTorch's columns of each group. All of them run, and the best one counts.
THEIRS = {"core": SDPA, "decode": STEPS, "generate": STEPS, "block": [EAGER, COMPILE], "forward": WHOLE, "train": WHOLE}
COLUMNS = [*OURS, GRAPHED, *SDPA, EAGER, TRANSFORMERS, COMPILE, GRAPH]
DTYPES = ["bf16", "f16"]

MAIN, PROMPT = (8, 1024), (1, 128)  # B, T
OTHERS = [(1, 128), (1, 1024), (32, 1024)]
TINY = (1, 32)
TOKENS = ("decode", "generate")  # their unit is tokens/s, all others' ms


def ours_of(group: str) -> dict[str, str]:
    """Our columns of a group, and how each runs: only generated tokens can be a CUDA graph."""
    return OURS | ({GRAPHED: "graph"} if group == "generate" else {})


class Row(NamedTuple):
    """One line of the table."""

    group: str
    dtype: str
    batch: int
    tokens: int  # decode, generate: those before the first timed step
    runs: int
    new_tokens: int  # 0 but for decode and generate

    @property
    def title(self) -> str:
        tokens = f"T {self.tokens} + {self.new_tokens}, tok/s" if self.new_tokens else f"T {self.tokens}, ms"
        return f"{self.group}, {self.dtype}, B {self.batch}, {tokens}"

    @property
    def aim(self) -> float | None:
        """For ours / PyTorch: at most, or for tokens/s at least, this."""
        if self.group == "core":
            return 1.2 if (self.batch, self.tokens) == MAIN else None
        return {"decode": 1.5, "generate": 1.5, "block": 0.9, "forward": 0.9, "train": 1.0}[self.group]


def rows(groups: list[str], dtypes: list[str], quick: bool, dry_run: bool) -> list[Row]:
    """What a run measures, in order: whatever comes first is still there when the time is over."""

    def row(group: str, dtype: str, b: int, t: int) -> Row:
        if dry_run:
            return Row(group, dtype, b, t, 3, 4 if group in TOKENS else 0)
        # Run short work more often: a GPU takes a while to leave its idle clock.
        many = {"core": 2**23, "block": 2**21, "forward": 2**18}.get(group, 0) // (b * t)
        runs = (5 if quick else 10) if many == 0 else 20 if quick else min(max(many, 20), 500)
        return Row(group, dtype, b, t, runs, 64 if group in TOKENS else 0)

    first = [(group, *(PROMPT if group in TOKENS else MAIN)) for group in THEIRS]
    rest = [(group, *size) for group in ("core", "block", "forward") for size in OTHERS] + [("decode", 8, 128)]
    if dry_run or quick:
        first, rest = [(group, *(TINY if dry_run else PROMPT)) for group in THEIRS], []
    # Only bf16 trains: in f16 a step needs scaled losses, which is another amount of work on each side.
    return [row(g, dtype, b, t) for dtype in dtypes for part in (first, rest) for g, b, t in part
            if g in groups and (g != "train" or dtype == "bf16")]
