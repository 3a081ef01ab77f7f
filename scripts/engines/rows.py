"""What is measured: the lines and the columns of the tables."""

from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version

from bench import rows as pytorch_rows

# What holds each engine to an instruction set; `Side.beyond` says where that fails.
ISAS = {
    isa: variables | {"CT2_FORCE_CPU_ISA": isa.upper(), "FBGEMM_ENABLE_INSTRUCTIONS": isa.upper()}
    for isa, variables in pytorch_rows.ISAS.items()
}
INSTALL = "pip install -r scripts/requirements-engines.txt"
# The largest relative difference of logits from those of our f32. Other forms differ by rounding, and
# int8 without VNNI also by products that saturate; beyond this, one is broken.
TOLERANCES = {"f32": 1e-3, "f16": 0.02, "bf16": 0.1, "q8_0": 0.1, "int8": 0.5, "q4_0": 0.6}

CACHED = ("token", "start")  # the kinds of rows that run with the cache of their column


@dataclass(frozen=True)
class Row:
    """One line of a table: the work of both sides."""

    name: str
    kind: str  # forward, token, start or memory
    title: str
    tokens: int  # of the prompt
    runs: int  # timed ones in a round
    last: bool = True
    new_tokens: int = 0

    @property
    def label(self) -> str:
        return self.title.format(self.tokens)

    @property
    def unit(self) -> str:
        return {"start": "s", "memory": "GB"}.get(self.kind, "ms")


ROWS = [
    Row("forward-128", "forward", "{} tokens, last logits", 128, runs=5),
    Row("forward-1024", "forward", "{} tokens, last logits", 1024, runs=2),
    Row("forward-all", "forward", "{} tokens, all logits", 1024, runs=2, last=False),
    Row("token-16", "token", "a token after {}", 16, runs=2, new_tokens=32),
    Row("token-900", "token", "a token after {}", 900, runs=2, new_tokens=32),
    Row("start", "start", "start of the process to the first token after {}", 16, runs=3),
    Row("memory", "memory", "peak memory of a process, {} tokens, last logits", 1024, runs=1),
]
NAMES = [row.name for row in ROWS]


@dataclass(frozen=True)
class Ours:
    """A form of our side: the weights, and the numbers of the cache for a token."""

    form: str  # f32, bf16, f16, q8_0 or q4_0
    kv: str = "f32"

    def title(self, row: Row) -> str:
        return f"{self.form}, cache {self.kv}" if row.kind in CACHED and self.kv != "f32" else self.form


@dataclass(frozen=True)
class Column:
    """An engine in a form, and the form of ours that it is beside."""

    engine: str
    form: str
    ours: Ours
    title: str
    packages: tuple[str, ...]  # as pip and as `import` name them, where that differs

    def missing(self) -> list[str]:
        return [package for package in self.packages if installed(package) is None]

    def runs(self, row: Row) -> bool:
        """A start is compared with llama.cpp alone: the others begin with Python's. Compiling takes memory of its own."""
        return self.engine == "llama.cpp" if row.kind == "start" else row.kind != "memory" or self.form != "compiled"


def installed(package: str) -> str | None:
    """The version of a package, found without importing it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _columns() -> list[Column]:
    f32, q8_0 = Ours("f32"), Ours("q8_0")
    onnx = ("onnxruntime", "onnx")
    torch = ("torch", "transformers")
    found = [
        Column("onnxruntime", "f32", f32, "ONNX Runtime", onnx),
        Column("openvino", "f32", f32, "OpenVINO", ("openvino",)),
        Column("ctranslate2", "f32", f32, "CTranslate2", ("ctranslate2",)),
        Column("pytorch", "f32", f32, "PyTorch", torch),
        Column("pytorch", "compiled", f32, "PyTorch, torch.compile", torch),
        Column("openvino", "bf16", Ours("bf16", "bf16"), "OpenVINO bf16", ("openvino",)),
        Column("onnxruntime", "int8", q8_0, "ONNX Runtime int8", onnx),
        Column("openvino", "int8", q8_0, "OpenVINO int8 weights", ("openvino",)),
        Column("ctranslate2", "int8", q8_0, "CTranslate2 int8", ("ctranslate2",)),
        Column("pytorch", "int8", q8_0, "PyTorch int8", torch),
    ]
    forms = ("q8_0", "q4_0", "f16")
    return found + [Column("llama.cpp", form, Ours(form, "f16"), f"llama.cpp {form}", ("llama-cpp-python",)) for form in forms]


COLUMNS = _columns()
ENGINES = list(dict.fromkeys(column.engine for column in COLUMNS))
OURS = list(dict.fromkeys(column.ours.form for column in COLUMNS))


def shrink(row: Row) -> Row:
    """The row of --quick."""
    return replace(row, tokens=max(8, row.tokens // 16), runs=min(row.runs, 2), new_tokens=row.new_tokens and 4)
