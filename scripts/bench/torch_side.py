"""The PyTorch side: a worker that stays alive between rounds, and programs for fresh processes."""

from collections.abc import Callable
from pathlib import Path
from statistics import median

from .rows import GPT2_SMALL, Row, prompt
from .side import milliseconds

FRESH_MODEL = """
import json, sys, torch
from transformers import GPT2LMHeadModel
folder, threads, ids = sys.argv[1], int(sys.argv[2]), torch.tensor([json.loads(sys.argv[3])])
dtype = getattr(torch, sys.argv[4])
torch.set_num_threads(threads)
model = GPT2LMHeadModel.from_pretrained(folder, attn_implementation="sdpa", dtype=dtype).eval()
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
threads, batch, tokens, runs, (attention, dtype) = *(int(arg) for arg in sys.argv[1:5]), sys.argv[5:]
torch.set_num_threads(threads)
torch.manual_seed(0)
config = GPT2Config(attn_implementation=attention)
model = GPT2LMHeadModel(config).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
ids = torch.randint(config.vocab_size, (batch, tokens))
times = []
for _ in range(1 + runs):
    start = time.perf_counter()
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
        loss = model(ids, labels=ids, use_cache=False).loss
    loss.backward()
    optimizer.step()
    times.append(1e3 * (time.perf_counter() - start))
print(statistics.median(times[1:]))
"""


class TorchSide:
    """The requests that the worker process answers: one for each public method."""

    def __init__(self) -> None:
        import torch
        import transformers

        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()
        self.torch, self.transformers, self.model, self.dtype = torch, transformers, None, torch.float32

    def versions(self) -> dict[str, str]:
        return {"torch": self.torch.__version__, "transformers": self.transformers.__version__}

    def use(self, dtype: str) -> None:
        """The dtype of everything from now on."""
        self.dtype = getattr(self.torch, dtype)

    def write_checkpoint(self, folder: str, shape: dict, misaligned: bool) -> int:
        """A checkpoint with f32 mask buffers, as GPT-2's own has them; returns its size in bytes."""
        from compare_with_transformers import misalign, write_tensors
        from make_reference import mask_buffers
        from reference.models import build_model

        model = build_model(seed=0, **shape)
        tensors = model.state_dict() | mask_buffers(model.config, self.torch.float32)
        left_out = ("lm_head.weight", ".attn.masked_bias")
        file = write_tensors(model, Path(folder), {k: v for k, v in tensors.items() if not k.endswith(left_out)})
        if misaligned:
            misalign(file)
        loader = self.transformers.GPT2LMHeadModel
        self.model = loader.from_pretrained(folder, attn_implementation="sdpa", dtype=self.dtype).eval()
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
        error = relative_error(safetensors.torch.load_file(exported)["logits"].float(), logits.float())
        return {"logits": error, "new_ids": [token.item() for token in found]}

    def time(self, row: dict, threads: int) -> float:
        """Median time of a run in milliseconds."""
        spec = Row(**row)
        self.torch.set_num_threads(threads)
        self.torch.manual_seed(0)
        with self.torch.inference_mode():
            return median(milliseconds(getattr(self, f"_{spec.group}")(spec), spec.runs))

    def _core(self, row: Row) -> Callable[[], object]:
        h, c = GPT2_SMALL["n_head"], GPT2_SMALL["n_embd"]
        qkv = (self.torch.rand(row.batch, row.tokens, 3, h, c // h) * 2 - 1).to(self.dtype)  # as c_attn returns them
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))  # (B, H, T, D)
        attention = self.torch.nn.functional.scaled_dot_product_attention
        return lambda: attention(q, k, v, is_causal=True)

    def _block(self, row: Row) -> Callable[[], object]:
        config = self.transformers.GPT2Config(attn_implementation="sdpa", **GPT2_SMALL)
        block = self.transformers.models.gpt2.modeling_gpt2.GPT2Attention(config, layer_idx=0).eval().to(self.dtype)
        x = (self.torch.rand(row.batch, row.tokens, config.n_embd) * 2 - 1).to(self.dtype)  # (B, T, C)
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
