"""PyTorch's side: prepares the cells of the table. Only the worker imports this, and with it PyTorch."""

import copy
import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from pytorch_gpt2 import GPT2, CausalSelfAttention

from .budget import NotRun
from .device import CpuDevice, CudaDevice, Device
from .rows import COMPILE, EAGER, GRAPH, TRANSFORMERS, Row
from .static_cache import StaticDecoder, hold, pick_greedy, pick_sampled
from .timing import Rotation, time_calls
from .training import Training

try:
    import transformers
except Exception:  # missing, or not made for this PyTorch: its cells stay empty
    transformers = None

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
BACKENDS = {
    "sdpa flash": SDPBackend.FLASH_ATTENTION,
    "sdpa efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa cuDNN": SDPBackend.CUDNN_ATTENTION,
}


def start(where: str, shape: dict) -> tuple[dict, "PyTorch"]:
    """PyTorch on "cuda" or "cpu", and what there is to say about it; raises `NotRun` if there is no GPU."""
    about = {"torch": torch.__version__, "transformers": transformers.__version__ if transformers else None}
    if where == "cpu":
        return about | {"gpu": "no GPU"}, PyTorch(where, CpuDevice(), shape)
    if not torch.cuda.is_available():
        raise NotRun(f"PyTorch {torch.__version__} finds no GPU; it must be a CUDA build that fits the driver")
    gpu = torch.cuda.get_device_properties(0)
    about |= {"gpu": gpu.name, "capability": f"{gpu.major}.{gpu.minor}", "gpu_bytes": gpu.total_memory}
    about |= {"torch_cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    device = CudaDevice()
    return about | {"l2_bytes": device.l2_bytes}, PyTorch(where, device, shape)


class PyTorch:
    """One method per group: it prepares a cell and returns a function that measures it, in milliseconds."""

    def __init__(self, where: str, device: Device, shape: dict) -> None:
        self.where, self.device, self.shape, self.models = where, device, shape, {}

    def prepare(self, row: Row, column: str) -> Callable[[], float]:
        if column == TRANSFORMERS and transformers is None:
            raise NotRun("transformers is not there, or not made for this PyTorch")
        return getattr(self, row.group)(row, column)

    def free(self) -> None:
        """Gives memory that nothing uses back to the driver: our binary, another process, needs it."""
        if self.where == "cuda":
            torch.cuda.empty_cache()

    def broken(self) -> bool:
        """Whether an error has made the GPU useless for this process."""
        try:
            self.device.synchronize()
        except RuntimeError:
            return True
        return False

    def random(self, row: Row, *shape: int) -> Tensor:
        torch.manual_seed(0)
        return (torch.rand(row.batch, row.tokens, *shape, device=self.where) * 2 - 1).to(DTYPES[row.dtype])

    def core(self, row: Row, column: str) -> Callable[[], float]:
        h, c = self.shape["n_head"], self.shape["n_embd"]
        packed = self.random(row, 3, h, c // h)  # as c_attn returns them

        def run(one: Tensor) -> Tensor:
            q, k, v = (part.transpose(1, 2) for part in one.unbind(2))  # (B, H, T, D)
            y = scaled_dot_product_attention(q, k, v, is_causal=True)
            return y.transpose(1, 2).reshape(row.batch, row.tokens, c)

        with sdpa_kernel(BACKENDS[column]), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                y = run(packed)[:1]
            except RuntimeError as error:  # PyTorch warns of each condition that does not hold
                reasons = [str(one).strip().splitlines()[0] for one in (error, *(w.message for w in said))]
                raise NotRun("; ".join(dict.fromkeys(reasons))) from None
        q, k, v = (part.transpose(1, 2) for part in packed[:1].float().unbind(2))
        with sdpa_kernel(SDPBackend.MATH):
            plain = scaled_dot_product_attention(q, k, v, is_causal=True)
        hold("its result is wrong", y, plain.transpose(1, 2).reshape(y.shape), roundings=4)
        set_bytes = 4 * packed.numel() // 3 * packed.element_size()  # q, k, v and the result
        inputs = Rotation(self.device, set_bytes, packed.clone)

        def measure() -> float:
            with sdpa_kernel(BACKENDS[column]):
                return time_calls(self.device, row.runs, inputs.calling(run))

        return measure

    def block(self, row: Row, column: str) -> Callable[[], float]:
        block = CausalSelfAttention(self.shape["n_embd"], self.shape["n_head"]).to(self.where, DTYPES[row.dtype])
        run, x = compiled(block) if column == COMPILE else block, self.random(row, self.shape["n_embd"])  # (B, T, C)
        inputs = Rotation(self.device, 2 * x.numel() * x.element_size(), x.clone)
        return lambda: time_calls(self.device, row.runs, inputs.calling(run))

    def forward(self, row: Row, column: str) -> Callable[[], float]:
        own, theirs = self.both(row.dtype)
        models = {EAGER: own, TRANSFORMERS: theirs and partial(theirs, use_cache=False, logits_to_keep=1)}
        model, ids = compiled(own) if column == COMPILE else models[column], self.ids(row)
        return lambda: time_calls(self.device, row.runs, lambda: model(ids))  # the weights are larger than an L2

    def decode(self, row: Row, column: str) -> Callable[[], float]:
        own, theirs = self.both(row.dtype)
        pick = pick_sampled if row.group == "generate" else pick_greedy
        if column in (GRAPH, COMPILE):
            decoder = StaticDecoder(own, self.ids(row), row.new_tokens, pick)
            decoder.make_step(compiled if column == COMPILE else None, graph=self.where == "cuda")
            decoder.check()
            return lambda: time_calls(self.device, row.runs, decoder.steps, before=decoder.reset)

        def step(ids: Tensor, past) -> tuple:
            if column == EAGER:
                past = past or [[] for _ in own.h]
                return pick(own(ids, past)), past
            output = theirs(ids, past_key_values=past, use_cache=True, logits_to_keep=1)
            return pick(output.logits), output.past_key_values

        first, prompt = step(self.ids(row), None)  # (B, 1)
        state = {}

        def before() -> None:
            state["past"] = copy.deepcopy(prompt)

        def steps() -> None:
            token, past = first, state["past"]
            for _ in range(row.new_tokens):
                token, past = step(token, past)

        return lambda: time_calls(self.device, row.runs, steps, before=before)

    generate = decode  # with another pick

    def train(self, row: Row, column: str) -> Callable[[], float]:
        ids = self.ids(row, more=1)
        if column == TRANSFORMERS:
            config = transformers.GPT2Config(attn_implementation="sdpa", **self.shape)  # dropout 0.1
            model = transformers.GPT2LMHeadModel(config).to(self.where, DTYPES[row.dtype]).train()
            loss = partial(model, ids[:, :-1], labels=ids[:, :-1], use_cache=False)  # it shifts the labels by itself
        else:
            model = Training(GPT2(**self.shape)).to(self.where, DTYPES[row.dtype])
            loss = partial(compiled(model) if column == COMPILE else model, ids[:, :-1], ids[:, 1:])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

        def step() -> None:
            optimizer.zero_grad()
            found = loss()
            (found.loss if column == TRANSFORMERS else found).backward()
            optimizer.step()

        return lambda: time_calls(self.device, row.runs, step)

    def ids(self, row: Row, more: int = 0) -> Tensor:
        """The ids that `gpt2 bench` uses, (B, T + more)."""
        t = row.tokens + more
        return (torch.arange(row.batch * t, device=self.where) * 7919 % self.shape["vocab_size"]).view(row.batch, t)

    def both(self, dtype: str) -> tuple[GPT2, nn.Module | None]:
        """Our own GPT-2 in PyTorch and, if installed, transformers', with the same weights."""
        if dtype in self.models:
            return self.models[dtype]
        self.models.clear()  # of another dtype
        torch.manual_seed(0)
        own, theirs = GPT2(**self.shape).eval(), None
        # With PyTorch's own random weights every token is followed by itself, and attention hardly matters, so that a
        # wrong cache would look right.
        for embedding in (own.wte, own.wpe):
            embedding.weight.mul_(0.02)
        for block in own.h:
            block["attn"].c_attn.weight.mul_(3)
        own = own.to(self.where, DTYPES[dtype])
        if transformers:
            transformers.utils.logging.set_verbosity_error()
            theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(attn_implementation="sdpa", **self.shape))
            theirs = theirs.to(self.where, DTYPES[dtype]).eval()
            turned = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # Conv1D holds (in, out), nn.Linear (out, in)
            weights = {k: w.T if k.endswith(turned) else w for k, w in own.state_dict().items()}
            theirs.transformer.load_state_dict(weights)
            ids = torch.arange(16, device=self.where)[None]
            expected = theirs(ids, use_cache=False, logits_to_keep=1).logits
            hold("the GPT-2 of pytorch_gpt2.py differs from transformers'", own(ids), expected, roundings=16)
        self.models[dtype] = own, theirs
        return own, theirs


def compiled(function: Callable) -> Callable:
    """A newly compiled function: a second shape of the same code would become a dynamic one, and slower."""
    torch._dynamo.reset()
    return torch.compile(function)


def mode(row: Row):
    """Only training needs gradients."""
    return torch.inference_mode(row.group != "train")
