"""ONNX Runtime: a graph of its own fused operators, f32 or with its dynamic quantization to int8."""

from pathlib import Path

import numpy
import onnxruntime

from .side import Side

FUSED = "com.microsoft"


def write(folder: Path, checkpoint: Path) -> None:
    """f32.onnx and int8.onnx.

    Attention is GroupQueryAttention, the operator whose keys and values stay in one buffer, as in onnxruntime-genai: the
    operator Attention copies them at each token. The rest is what onnxruntime.transformers.optimizer makes of an exported GPT-2.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    folder.mkdir()
    model = graph(checkpoint)
    onnx.save(model, folder / "f32.onnx", save_as_external_data=True, location="f32.data")
    options = dict(weight_type=QuantType.QInt8, per_channel=True, use_external_data_format=True)
    options["extra_options"] = {"DefaultTensorType": onnx.TensorProto.FLOAT}  # it cannot infer those after fused operators
    quantize_dynamic(folder / "f32.onnx", folder / "int8.onnx", **options)


def graph(checkpoint: Path):
    from onnx import TensorProto, helper, numpy_helper

    from . import weights

    config, tensors = weights.read(checkpoint)
    heads, c = config["n_head"], config["n_embd"]
    nodes, constants = [], []
    value = helper.make_tensor_value_info
    inputs = [value(name, TensorProto.INT64, ["B", "T"]) for name in ("ids", "positions")]
    inputs += [value("first", TensorProto.INT64, [1])]  # the first position whose logits are computed
    inputs += [value("last_key", TensorProto.INT32, ["B"]), value("keys", TensorProto.INT32, [1])]
    outputs = [value("logits", TensorProto.FLOAT, ["B", "kept", config["vocab_size"]])]

    def constant(name: str, array) -> None:
        constants.append(numpy_helper.from_array(numpy.ascontiguousarray(array), name))

    def add(kind: str, name: str, *operands: str, more: tuple = (), **attributes: object) -> str:
        nodes.append(helper.make_node(kind, operands, [name, *more], name=name, **attributes))
        return name

    def norm(name: str, x: str) -> str:
        return add("LayerNormalization", f"{name}.out", x, f"{name}.weight", f"{name}.bias", epsilon=1e-5)

    def linear(name: str, x: str) -> str:
        product = add("MatMul", f"{name}.product", x, f"{name}.weight")
        if name.endswith("c_fc"):
            return add("FastGelu", f"{name}.gelu", product, f"{name}.bias", domain=FUSED)
        return add("Add", f"{name}.out", product, f"{name}.bias")

    for name, tensor in tensors.items():
        constant(name, tensor)
    constant("lm_head", tensors["wte.weight"].T)
    constant("end", numpy.array([2**31]))
    constant("axis", numpy.array([1]))
    x = add("Add", "embedded", add("Gather", "token", "wte.weight", "ids"), add("Gather", "position", "wpe.weight", "positions"))
    for layer in range(config["n_layer"]):
        at, caches = f"h.{layer}", [f"k{layer}", f"v{layer}"]
        inputs += [value(f"past_{name}", TensorProto.FLOAT, ["B", heads, "S", c // heads]) for name in caches]
        outputs += [value(f"present_{name}", TensorProto.FLOAT, ["B", heads, "S", c // heads]) for name in caches]
        qkv = linear(f"{at}.attn.c_attn", norm(f"{at}.ln_1", x))
        operands = [qkv, "", "", *(f"past_{name}" for name in caches), "last_key", "keys"]
        present = tuple(f"present_{name}" for name in caches)
        z = add("GroupQueryAttention", f"{at}.z", *operands, more=present, domain=FUSED, num_heads=heads, kv_num_heads=heads)
        x = add("Add", f"{at}.middle", x, linear(f"{at}.attn.c_proj", z))
        hidden = linear(f"{at}.mlp.c_fc", norm(f"{at}.ln_2", x))
        x = add("Add", f"{at}.end", x, linear(f"{at}.mlp.c_proj", hidden))
    add("MatMul", "logits", norm("ln_f", add("Slice", "kept", x, "first", "end", "axis")), "lm_head")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(FUSED, 1)]
    return helper.make_model(helper.make_graph(nodes, "gpt2", inputs, outputs, constants), opset_imports=opsets, ir_version=9)


class Engine(Side):
    def __init__(self, folder: Path, form: str, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3  # errors
        file = folder / "onnxruntime" / f"{form}.onnx"
        self.session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        self.caches = {one.name: one.shape for one in self.session.get_inputs() if one.name.startswith("past_")}
        self.length, self.size, self.past = 0, 0, {}

    def forward(self, ids: list[int], last: bool) -> object:
        self._empty(len(ids))
        return self._run(ids, last)

    def numbers(self, logits):
        return logits.numpy()

    def beyond(self, isa: str) -> str:
        return "ONNX Runtime has no variable that holds it: it takes the processor's best"

    def _empty(self, size: int) -> None:
        """Buffers for the keys and values of so many tokens. A timed run takes those of the untimed one before it."""
        value = onnxruntime.OrtValue.ortvalue_from_shape_and_type
        self.length = 0
        if size == self.size:
            return
        self.size = size
        self.past = {name: value([1, shape[1], size, shape[3]], numpy.float32) for name, shape in self.caches.items()}

    def _next(self, ids: list[int]) -> int:
        self.found = self._run(ids, last=True).numpy()[0, -1]
        return int(self.found.argmax())

    def _run(self, ids: list[int], last: bool):
        before, self.length = self.length, self.length + len(ids)
        binding = self.session.io_binding()
        binding.bind_cpu_input("ids", numpy.array([ids]))
        binding.bind_cpu_input("positions", numpy.arange(before, self.length)[None])
        binding.bind_cpu_input("first", numpy.array([-1 if last else 0]))
        binding.bind_cpu_input("last_key", numpy.array([self.length - 1], numpy.int32))
        binding.bind_cpu_input("keys", numpy.array([self.length], numpy.int32))
        binding.bind_output("logits")
        for name, buffer in self.past.items():  # the same buffer in and out: nothing is copied
            binding.bind_ortvalue_input(name, buffer)
            binding.bind_ortvalue_output(name.replace("past", "present"), buffer)
        self.session.run_with_iobinding(binding)
        return binding.get_outputs()[0]
