"""Models with random weights, and the values that transformers computes with them: shared by the scripts that write
tests/data."""

import math
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel


def build_model(seed: int, **config: object) -> GPT2LMHeadModel:
    """A GPT-2 in eval mode in which every parameter is random and affects the result."""
    last = int(config["vocab_size"]) - 1  # GPT-2's own bos and eos are its last token
    model = GPT2LMHeadModel(
        GPT2Config(bos_token_id=last, eos_token_id=last, attn_implementation="eager", **config)
    )
    randomize(model, seed)
    return model.eval()


@torch.no_grad()
def randomize(model: PreTrainedModel, seed: int) -> None:
    """Fill all parameters so that scores spread by about 2: attention is far from uniform.

    A matrix with deviation 1.4 / sqrt(fan in) turns unit inputs into outputs of deviation 1.4;
    q·k / sqrt(D) then has deviation 1.4² = 2. Biases and layer norms are non-trivial as well.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():  # a tied lm_head occurs once, as wte
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim == 1:
            is_layer_norm_weight = name.endswith(".weight")
            parameter.copy_(0.3 * noise + (1.0 if is_layer_norm_weight else 0.0))
        else:
            # Conv1D is (in, out); wte, wpe and lm_head are (rows, C), and the sum runs over C, as in nn.Linear.
            is_conv1d = ".h." in name and model.config.model_type == "gpt2"
            fan_in = parameter.shape[0] if is_conv1d else parameter.shape[1]
            parameter.copy_(noise * (1.4 / math.sqrt(fan_in)))


def save_checkpoint(model: PreTrainedModel, folder: Path) -> None:
    """config.json and model.safetensors, as transformers itself writes them."""
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink()


def random_ids(seed: int, batch: int, length: int, vocab_size: int) -> Tensor:
    return torch.randint(vocab_size, (batch, length), generator=torch.Generator().manual_seed(seed))


def save_reference(tensors: dict[str, Tensor], folder: Path) -> None:
    for name, tensor in tensors.items():
        assert tensor.dtype in (torch.float32, torch.int64), (name, tensor.dtype)
        assert tensor.isfinite().all(), name
    # Clones, because safetensors refuses two names for one storage (h.0 is hidden_states.1).
    save_file({k: v.detach().clone().contiguous() for k, v in tensors.items()}, folder / "reference.safetensors")


@torch.no_grad()
def activations(model: PreTrainedModel, ids: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
    """input_ids, logits, hidden_states.{0..=L} (the last after ln_f) and attentions.{0..L}."""
    output = model(ids, **inputs, output_hidden_states=True, output_attentions=True, use_cache=False)
    assert len(output.hidden_states) == model.config.n_layer + 1
    assert len(output.attentions) == model.config.n_layer
    tensors = {"input_ids": ids, "logits": output.logits}
    tensors |= {f"hidden_states.{i}": tensor for i, tensor in enumerate(output.hidden_states)}
    tensors |= {f"attentions.{i}": tensor for i, tensor in enumerate(output.attentions)}
    for i, tensor in enumerate(output.cross_attentions or ()):
        tensors[f"cross_attentions.{i}"] = tensor
    return tensors


def gradients(model: PreTrainedModel, ids: Tensor, mask: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
    """The gradients of the mean next-token loss over the visible positions that have a visible next token."""
    model.zero_grad()
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    logits = model(ids, attention_mask=mask, position_ids=positions, use_cache=False, **inputs).logits  # (B, T, V)
    targets = ids.where(mask == 1, -100)[:, 1:].where(mask[:, :-1] == 1, -100)
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten(), ignore_index=-100)
    loss.backward()
    tensors = {"loss": loss}
    for name, parameter in model.named_parameters():  # the tied head's share is in wte's gradient
        tensors[f"grad.{name.removeprefix('transformer.')}"] = parameter.grad.clone()
    return tensors
