"""OpenVINO: a graph with keys and values as its state; f32, bf16, or weights in int8."""

from pathlib import Path

import numpy
import openvino
from openvino import opset13 as ops

from .side import Side

PRECISION = {"f32": "f32", "int8": "f32", "bf16": "bf16"}


def write(folder: Path, checkpoint: Path, masked: bool = False) -> None:
    """f32.xml, which bf16 reads too, and int8.xml: the graph that optimum-intel makes of a transformers model.

    With `masked`, it has an input `mask` (B, 1, T, S) that is added to the scores, for texts of several lengths.
    """
    folder.mkdir()
    for form in ("f32", "int8"):
        openvino.save_model(Graph(checkpoint, form, masked).model, folder / f"{form}.xml", compress_to_fp16=False)


class Graph:
    def __init__(self, checkpoint: Path, form: str, masked: bool) -> None:
        from . import weights

        config, self.tensors = weights.read(checkpoint)
        self.form, self.heads, self.c = form, config["n_head"], config["n_embd"]
        self.ids, self.rows = self._input("ids", 2), self._input("rows", 1)  # rows: which of the batch a state continues
        positions, first = self._input("positions", 2), self._input("first", 1)
        self.mask = self._input("mask", 4) if masked else None
        self.states, embedding = [], self._matrix(self.tensors["wte.weight"])
        x = ops.add(ops.gather(embedding, self.ids, 0), ops.gather(self._constant("wpe.weight"), positions, 0))
        for layer in range(config["n_layer"]):
            z = self._attention(layer, self._linear(f"h.{layer}.attn.c_attn", self._norm(f"h.{layer}.ln_1", x)))
            x = ops.add(x, self._linear(f"h.{layer}.attn.c_proj", z))
            hidden = ops.gelu(self._linear(f"h.{layer}.mlp.c_fc", self._norm(f"h.{layer}.ln_2", x)), "tanh")
            x = ops.add(x, self._linear(f"h.{layer}.mlp.c_proj", hidden))
        kept = ops.slice(x, first, [2**31 - 1], [1], [1])
        logits = ops.result(ops.matmul(self._norm("ln_f", kept), embedding, False, True))
        inputs = [self.ids, positions, self.rows, first] + ([self.mask] if masked else [])
        self.model = openvino.Model([logits], self.states, inputs, "gpt2")

    def _input(self, name: str, rank: int):
        kind = {"rows": numpy.int32, "mask": numpy.float32}.get(name, numpy.int64)
        parameter = ops.parameter([-1] * rank, kind, name)
        parameter.output(0).set_names({name})
        return parameter

    def _constant(self, name: str):
        return ops.constant(self.tensors[name])

    def _matrix(self, rows):
        """A matrix (out, in), in int8 with a factor for each row where the form says so."""
        if self.form != "int8":
            return ops.constant(numpy.ascontiguousarray(rows))
        factors = numpy.abs(rows).max(axis=1, keepdims=True) / 127
        whole = ops.constant(numpy.rint(rows / factors).astype(numpy.int8))
        return ops.multiply(ops.convert(whole, "f32"), ops.constant(factors.astype(numpy.float32)))

    def _linear(self, name: str, x):
        product = ops.matmul(x, self._matrix(self.tensors[f"{name}.weight"].T), False, True)
        return ops.add(product, self._constant(f"{name}.bias"))

    def _norm(self, name: str, x):
        even = ops.mvn(x, [-1], True, 1e-5, "inside_sqrt")
        return ops.add(ops.multiply(even, self._constant(f"{name}.weight")), self._constant(f"{name}.bias"))

    def _attention(self, layer: int, qkv):
        size = self.c // self.heads
        parts = [ops.reshape(part, [0, 0, self.heads, size], True) for part in ops.split(qkv, 2, 3).outputs()]
        q, k, v = (ops.transpose(part, [0, 2, 1, 3]) for part in parts)  # (B, H, T, D)
        batch = ops.gather(ops.shape_of(self.ids, "i64"), [0], 0)
        empty = ops.broadcast(numpy.float32(0), ops.concat([batch, ops.constant(numpy.array([self.heads, 0, size]))], 0))
        both = []
        for name, new in ((f"k{layer}", k), (f"v{layer}", v)):
            state = openvino.op.util.VariableInfo()
            state.data_shape = openvino.PartialShape([-1, self.heads, -1, size])
            state.data_type, state.variable_id = openvino.Type.f32, name
            variable = openvino.op.util.Variable(state)
            before = ops.gather(ops.read_value(empty, variable), self.rows, 0)
            both.append(ops.concat([before, new], 2))
            self.states.append(ops.assign(both[-1], variable))
        # Without a mask, a new query sees all keys before it.
        if self.mask is None:
            z = ops.scaled_dot_product_attention(q, *both, causal=True)
        else:
            z = ops.scaled_dot_product_attention(q, *both, self.mask)
        return ops.reshape(ops.transpose(z, [0, 2, 1, 3]), [0, 0, self.c], True)


class Engine(Side):
    def __init__(self, folder: Path, form: str, threads: int) -> None:
        file = folder / "openvino" / f"{'int8' if form == 'int8' else 'f32'}.xml"
        options = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": PRECISION[form],
            "KV_CACHE_PRECISION": PRECISION[form],
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
        }
        core = openvino.Core()
        if form == "bf16" and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            raise RuntimeError("OpenVINO has no bf16 on this processor")
        self.request = core.compile_model(file, "CPU", options).create_infer_request()
        self.length = 0

    def forward(self, ids: list[int], last: bool) -> object:
        self._empty(len(ids))
        return self._run(ids, last)

    def numbers(self, logits):
        return logits.data.copy()

    def beyond(self, isa: str) -> str:
        return "OpenVINO's oneDNN is held, but not MLAS, which it has for products in f32, and not its attention"

    def _empty(self, size: int) -> None:
        self.request.reset_state()
        self.length = 0

    def _next(self, ids: list[int]) -> int:
        self.found = self._run(ids, last=True).data[0, -1]
        return int(self.found.argmax())

    def _run(self, ids: list[int], last: bool):
        inputs = {"ids": numpy.array([ids]), "positions": numpy.arange(self.length, self.length + len(ids))[None]}
        inputs |= {"rows": numpy.array([0], numpy.int32), "first": numpy.array([-1 if last else 0])}
        self.length += len(ids)
        self.request.infer(inputs)
        return self.request.get_output_tensor()
