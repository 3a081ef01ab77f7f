"""PyTorch: transformers' GPT-2 with sdpa attention, as it is, compiled, or with dynamic quantization to int8."""

from pathlib import Path

import torch
import transformers
from torch import nn

from .side import Side

COMPILED_ROOM = 64  # tokens after the prompt; another size of the cache would be compiled again


class Engine(Side):
    """`form` is f32, compiled or int8."""

    def __init__(self, folder: Path, form: str, threads: int) -> None:
        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()
        torch.set_num_threads(threads)
        loader = transformers.GPT2LMHeadModel
        checkpoint = folder / "checkpoint"
        self.model = loader.from_pretrained(checkpoint, attn_implementation="sdpa", dtype=torch.float32).eval()
        self.run = self.continued = self.model
        self.compiled, self.cache = form == "compiled", None
        self.without_gradients = torch.no_grad if self.compiled else torch.inference_mode  # freezing knows only the first
        if form == "int8":
            quantize(self.model)
        if self.compiled:
            from torch._dynamo import config as dynamo
            from torch._inductor import config as inductor

            inductor.compile_threads = 1  # no processes of its own
            # Each row is a shape. At the limit, PyTorch would run the model as it is, under the name of a compiled one.
            dynamo.recompile_limit, dynamo.fail_on_recompile_limit_hit = 32, True
            # Freezing packs weights, as PyTorch advises for inference on processors. In steps it would freeze the cache too.
            self.run = torch.compile(self.model, dynamic=False, options={"freezing": True})
            self.continued = torch.compile(self.model, dynamic=False)

    def forward(self, ids: list[int], last: bool) -> object:
        with self.without_gradients():
            return self.run(torch.tensor([ids]), use_cache=False, logits_to_keep=1 if last else 0).logits

    def numbers(self, logits):
        return logits.numpy()

    def prefill(self, ids: list[int], room: int) -> int:
        """The cache of compiled steps is of one size for any number of steps. The model as it is fills it."""
        options = dict(config=self.model.config)
        if self.compiled:
            size = len(ids) + max(room, COMPILED_ROOM)
            self.cache = transformers.StaticCache(max_cache_len=size, **options)
        else:
            self.cache = transformers.DynamicCache(**options)
        return self._next(self.model, ids)

    def step(self, token: int) -> int:
        return self._next(self.continued, [token])

    def _next(self, run, ids: list[int]) -> int:
        with self.without_gradients():
            logits = run(torch.tensor([ids]), past_key_values=self.cache, logits_to_keep=1).logits[0, -1]
            self.found = logits.numpy()
            return int(logits.argmax())


def quantize(model: nn.Module) -> None:
    """PyTorch quantizes nn.Linear, so each Conv1D becomes one first. lm_head is one; the embedding stays in f32."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, transformers.pytorch_utils.Conv1D):
                linear = nn.Linear(*child.weight.shape)
                linear.weight, linear.bias = nn.Parameter(child.weight.t().contiguous()), child.bias
                setattr(parent, name, linear)
    torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8, inplace=True)
