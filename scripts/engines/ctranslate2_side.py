"""CTranslate2: f32, or int8 weights with inputs quantized as it runs."""

import sys
import time
from pathlib import Path

# `import ctranslate2` loads these for its converters, if they are there. They would count as its memory.
sys.modules |= {name: None for name in ("torch", "transformers", "huggingface_hub") if name not in sys.modules}

import ctranslate2  # noqa: E402
import numpy  # noqa: E402

from .side import Side  # noqa: E402

TYPES = {"f32": "float32", "int8": "int8"}


def write(folder: Path, checkpoint: Path) -> None:
    """A folder for each form, laid out as its own converter for GPT-2 does. A token's text is its id."""
    from . import weights

    config, tensors = weights.read(checkpoint)
    specs = ctranslate2.specs
    for form in TYPES:
        spec = specs.TransformerDecoderModelSpec.from_config(
            config["n_layer"], config["n_head"], pre_norm=True, activation=specs.Activation.GELUTanh
        )

        def linear(into, name: str) -> None:
            into.weight, into.bias = numpy.ascontiguousarray(tensors[f"{name}.weight"].T), tensors[f"{name}.bias"]  # (out, in)

        def norm(into, name: str) -> None:
            into.gamma, into.beta = tensors[f"{name}.weight"], tensors[f"{name}.bias"]

        decoder = spec.decoder
        decoder.scale_embeddings = False
        decoder.embeddings.weight = decoder.projection.weight = tensors["wte.weight"]
        decoder.position_encodings.encodings = tensors["wpe.weight"]
        norm(decoder.layer_norm, "ln_f")
        for number, layer in enumerate(decoder.layer):
            norm(layer.self_attention.layer_norm, f"h.{number}.ln_1")
            linear(layer.self_attention.linear[0], f"h.{number}.attn.c_attn")
            linear(layer.self_attention.linear[1], f"h.{number}.attn.c_proj")
            norm(layer.ffn.layer_norm, f"h.{number}.ln_2")
            linear(layer.ffn.linear_0, f"h.{number}.mlp.c_fc")
            linear(layer.ffn.linear_1, f"h.{number}.mlp.c_proj")
        spec.register_vocabulary([str(token) for token in range(config["vocab_size"])])
        end = str(config["eos_token_id"])
        spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = end
        spec.validate()
        spec.optimize(quantization=None if form == "f32" else TYPES[form])
        (folder / form).mkdir(parents=True)
        spec.save(str(folder / form))


class Engine(Side):
    def __init__(self, folder: Path, form: str, threads: int) -> None:
        options = dict(device="cpu", compute_type=TYPES[form], inter_threads=1, intra_threads=threads)
        self.generator = ctranslate2.Generator(str(folder / "ctranslate2" / form), **options)

    def forward(self, ids: list[int], last: bool) -> object:
        """All logits, or, since it has no call for the last ones alone, greedy generation of one token."""
        return self._generate(ids, 1) if last else self.generator.forward_batch([ids])

    def numbers(self, logits):
        return numpy.array(logits)

    def logits(self, ids: list[int], last: bool):
        if last:
            return numpy.array(self._generate(ids, 1, return_logits_vocab=True).logits[0][0])
        return self.numbers(self.forward(ids, last))

    def cached(self, ids: list[int], token: int):
        """It takes no token from outside: this is right if `token` is the one that it finds itself, as in f32."""
        return numpy.array(self._generate(ids, 2, min_length=0, return_logits_vocab=True).logits[0][1])

    def decode(self, ids: list[int], count: int) -> tuple[float, list[int]]:
        """It keeps its cache to itself, so the time is that between the first token and the last."""
        times = []

        def note(_step: object) -> bool:
            times.append(time.perf_counter())
            return False  # go on

        found = self._generate(ids, count + 1, callback=note).sequences_ids[0]
        assert len(times) == count + 1, f"{len(times)} callbacks for {count + 1} tokens"
        return times[-1] - times[0], found

    def _generate(self, ids: list[int], count: int, **options: object):
        words = [str(token) for token in ids]
        # min_length keeps the end token from ending it early, by changing that token's logit.
        limits = dict(max_length=count, min_length=count if count > 1 else 0, include_prompt_in_result=False)
        return self.generator.generate_batch([words], beam_size=1, sampling_topk=1, **limits | options)[0]
