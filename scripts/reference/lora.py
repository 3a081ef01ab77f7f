"""The reference data of LoRA adapters: PEFT's own files, with each of its options, the logits that PEFT computes with
them, and its gradients, with dropout drawn by our generator."""

import json
import math
import shutil
from pathlib import Path

import peft
import torch
from torch import Tensor
from transformers import GPT2LMHeadModel, GPT2Model, PreTrainedModel

from reference.models import build_model, random_ids, save_checkpoint, save_reference
from reference.bigcode_cross import BATCH, LENGTH, NO_DROPOUT, SHAPE, build_bigcode

ALL = ["c_attn", "c_proj", "c_fc"]

# Each option of PEFT's that the loader reads, on its own or in a pair that could be confused.
CASES: dict[str, dict] = {
    "default": dict(),
    "every_layer": dict(target_modules=ALL, r=3, lora_alpha=5),
    "rslora": dict(target_modules=ALL, r=4, lora_alpha=6, use_rslora=True),
    "regex": dict(target_modules=r".*\.h\.1\.(attn\.c_proj|mlp\.c_fc)", r=2),
    "one_block": dict(target_modules=["c_attn", "mlp.c_proj"], layers_to_transform=1, r=2),
    "blocks_by_pattern": dict(target_modules=["c_attn"], layers_to_transform=[0], layers_pattern=["h"], r=2),
    "ranks": dict(
        target_modules=ALL, r=2, rank_pattern={"attn.c_proj": 5, "h.0.*.c_proj": 1}, alpha_pattern={r"h\.1\.mlp\.c_fc": 3}
    ),
    "excluded": dict(target_modules=ALL, exclude_modules=["mlp.c_proj"], r=2),
    "whole_modules": dict(target_modules=["c_attn"], modules_to_save=["ln_f", "lm_head", "mlp.c_fc"], r=2),
    "whole_embedding": dict(target_modules=["c_attn"], modules_to_save=["wte"], r=2),
    "gaussian": dict(target_modules=ALL, init_lora_weights="gaussian", r=2, bias="none"),
}

# What an adapter may hold besides updates of the blocks' layers, and adapters of a model without a head.
PARTS: dict[str, dict] = {
    "biases": dict(target_modules=["c_attn"], bias="all", r=2),
    "biases_of_layers": dict(target_modules=["c_attn", "mlp.c_proj"], bias="lora_only", r=2),
    "embeddings": dict(target_modules=["wte", "wpe", "c_attn"], r=2),
    "head": dict(target_modules=["lm_head", "c_attn"], r=2, lora_alpha=4),
}
OF_A_BARE_MODEL: dict[str, dict] = {
    "bare_block": dict(target_modules=["c_attn"], layers_to_transform=[0], layers_pattern="h", r=2),
    "bare_biases": dict(target_modules=["c_attn"], bias="all", r=2),
    "bare_embedding": dict(target_modules=["wte"], r=2),
}


def write_lora(out: Path) -> None:
    folder = out / "lora"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    base = build_model(60, **SHAPE, **NO_DROPOUT)
    save_checkpoint(base, folder / "base")
    ids = random_ids(seed=460, batch=BATCH, length=LENGTH, vocab_size=SHAPE["vocab_size"])
    tensors = {"input_ids": ids, "base.logits": logits(base, ids)}
    for number, (name, options) in enumerate(CASES.items()):
        model = adapted(GPT2LMHeadModel.from_pretrained(folder / "base"), number, **options)
        model.save_pretrained(folder / name)
        (folder / name / "README.md").unlink()
        if name == "default":
            torch.save(peft.get_peft_model_state_dict(model), folder / "default.bin")
        tensors[f"{name}.logits"] = logits(model, ids)
        if name == "every_layer":
            tensors |= {f"plain.{key}": value for key, value in gradients(model, ids).items()}
            with_our_dropout(model, rate=0.25, seed=3, step=17)
            tensors |= {f"dropped.{key}": value for key, value in gradients(model, ids).items()}
    tensors["two.logits"] = two_adapters(folder, ids)

    bigcode = build_bigcode(61, multi_query=True, **SHAPE, **NO_DROPOUT)
    save_checkpoint(bigcode, folder / "bigcode_base")
    model = adapted(bigcode, 90, target_modules=ALL, r=2)
    model.save_pretrained(folder / "bigcode")
    (folder / "bigcode" / "README.md").unlink()
    tensors["bigcode.logits"] = logits(model, ids)
    save_reference(tensors, folder)
    without_paths(folder)


def write_lora_parts(out: Path) -> None:
    """Adapters of the base of write_lora, whose other data this leaves alone."""
    folder = out / "lora_parts"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    base = out / "lora" / "base"
    ids = random_ids(seed=461, batch=BATCH, length=LENGTH, vocab_size=SHAPE["vocab_size"])
    tensors = {"input_ids": ids}
    for number, (name, options) in enumerate((PARTS | OF_A_BARE_MODEL).items()):
        is_bare = name in OF_A_BARE_MODEL
        model = (GPT2Model if is_bare else GPT2LMHeadModel).from_pretrained(base)
        model = adapted(model, 200 + number, task_type=None if is_bare else "CAUSAL_LM", **options)
        model.save_pretrained(folder / name)
        (folder / name / "README.md").unlink()
        if is_bare:
            with torch.no_grad():
                hidden = model(ids).last_hidden_state
                head = GPT2LMHeadModel.from_pretrained(base).lm_head.weight
                tensors[f"{name}.logits"] = hidden @ head.T
        else:
            tensors[f"{name}.logits"] = logits(model, ids)
    save_reference(tensors, folder)
    without_paths(folder)


def without_paths(folder: Path) -> None:
    """The path of this machine is no part of the data."""
    for config in folder.glob("*/adapter_config.json"):
        settings = json.loads(config.read_text()) | {"base_model_name_or_path": "base"}
        # PEFT writes a set in any order.
        if isinstance(settings["target_modules"], list):
            settings["target_modules"].sort()
        config.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


def adapted(base: PreTrainedModel, seed: int, size: float = 1.0, **options: object) -> peft.PeftModel:
    """The model with an adapter that changes its logits: random numbers of this size for everything that is trained."""
    model = peft.get_peft_model(base, peft.LoraConfig(**(dict(task_type="CAUSAL_LM", fan_in_fan_out=True) | options)))
    generator = torch.Generator().manual_seed(1000 + seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                deviation = size / math.sqrt(parameter.shape[-1])
                parameter.add_(deviation * torch.randn(parameter.shape, generator=generator))
    return model.eval()


@torch.no_grad()
def logits(model: torch.nn.Module, ids: Tensor) -> Tensor:
    return model(ids).logits


def two_adapters(folder: Path, ids: Tensor) -> Tensor:
    """The logits with two adapters at once, one of them half as strong."""
    base = GPT2LMHeadModel.from_pretrained(folder / "base")
    model = peft.PeftModel.from_pretrained(base, folder / "every_layer", adapter_name="first")
    model.load_adapter(folder / "rslora", adapter_name="second")
    for module in model.modules():
        if isinstance(module, peft.tuners.lora.LoraLayer):
            module.scaling["second"] *= 0.5
    model.base_model.set_adapter(["first", "second"])
    return logits(model.eval(), ids)


def gradients(model: peft.PeftModel, ids: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss = model(ids, labels=ids).loss
    loss.backward()
    found = {"loss": loss}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            name = name.removeprefix("base_model.model.transformer.").replace(".default", "")
            found[f"grad.{name}"] = parameter.grad
    return found


class Dropped(torch.nn.Module):
    """Dropout whose mask is the one that our generator draws for a layer of a block."""

    def __init__(self, rate: float, seed: int, stream: int) -> None:
        super().__init__()
        self.rate, self.seed, self.stream = rate, seed, stream

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = x.numel() // x.shape[-1], x.shape[-1]
        threshold = int(self.rate * 2**32)
        kept = [
            [philox((column // 4, row, self.stream & 0xFFFFFFFF, self.stream >> 32), self.seed)[column % 4] >= threshold
             for column in range(columns)]
            for row in range(rows)
        ]
        return x * torch.tensor(kept, dtype=x.dtype).reshape(x.shape) / (1 - self.rate)


def with_our_dropout(model: peft.PeftModel, rate: float, seed: int, step: int) -> None:
    """Replace the dropout of each adapted layer. A place has 4 bits for the site, of which the adapters' start at 6, and 16
    for the block."""
    for block, layers in enumerate(model.base_model.model.transformer.h):
        in_order = [layers.attn.c_attn, layers.attn.c_proj, layers.mlp.c_fc, layers.mlp.c_proj]
        for nth, layer in enumerate(in_order):
            layer.lora_dropout["default"] = Dropped(rate, seed, step << 20 | block << 4 | (6 + nth))


def philox(counter: tuple[int, ...], seed: int) -> list[int]:
    """Philox4x32-10, Salmon et al. 2011, table 1 and section 4.3."""
    word, multipliers, increments = 0xFFFFFFFF, (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)
    key = [seed & word, seed >> 32]
    state = list(counter)
    for _ in range(10):
        products = [multipliers[0] * state[0], multipliers[1] * state[2]]
        state = [
            (products[1] >> 32) ^ state[1] ^ key[0],
            products[1] & word,
            (products[0] >> 32) ^ state[3] ^ key[1],
            products[0] & word,
        ]
        key = [(k + increment) & word for k, increment in zip(key, increments)]
    return state

