"""The model."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from . import _native
from ._analyses import Analyses
from ._base import Progress, Report
from ._circuits import Circuits
from ._features import Features
from ._hooks import active, refuse_hooks
from ._inputs import Changes, Options, changes_of, ids_of, rows_of
from ._notes import warn
from ._numbers import array_of, count, maybe
from ._progress import Downloads
from ._results import Attention, Comparison, Continuation
from ._texts import Predictions
from ._types import DType, Floats, KvDType, Text, Texts
from ._weights import Weights

if sys.version_info >= (3, 11):
    from typing import Unpack
elif TYPE_CHECKING:
    from typing_extensions import Unpack

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_native.forked)

# As the command does, so that Candle's own threads sleep sooner after an operation and leave the cores to ours.
os.environ.setdefault("CANDLE_BARRIER_POOL_SPIN_LIMIT", "1000")

_threads: int | None = None


def _set_threads(threads: int | None) -> None:
    """The thread pool starts with the first model, and has its size from then on."""
    global _threads
    if threads is None:
        given = os.environ.get("RAYON_NUM_THREADS", "")
        _threads = _threads or (int(given) if given.isdecimal() else 0)
        return
    if isinstance(threads, bool) or not isinstance(threads, int):
        raise TypeError(f"threads: expected a number, got {threads!r}")
    if not 1 <= threads <= 1024:
        raise ValueError(f"threads is {threads}, expected 1 to 1024")
    if _threads is not None and _threads != threads:
        was = f"{_threads} threads" if _threads else "a thread for each core"
        raise RuntimeError(f"threads={threads}: the first model started {was}, for the whole process; give threads= there")
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    _threads = threads


# What TransformerLens' users ask a model for, and what serves here.
_ELSEWHERE = {
    **dict.fromkeys(["add_hook", "add_perma_hook", "reset_hooks"], "with model.hooks([(point, function)]): has hooks for its block alone"),
    "hook_dict": "model.hook_points lists the points and their shapes",
    **dict.fromkeys(
        ["blocks", "embed", "pos_embed", "unembed", "ln_final"],
        "weights are model.W_Q, model.W_in, .. for all layers at once; model.parameters lists them by the checkpoint's names",
    ),
    **dict.fromkeys(["OV", "QK"], "model.circuit(\"0.3\", \"ov\", tokens) has the rows of a head's circuit"),
    **dict.fromkeys(["to", "cuda", "cpu", "eval"], "a model stays where Model.load(device=..) put it, and never has dropout"),
}


class Model(Analyses, Circuits, Features, Predictions, Weights):
    """A GPT-2 with its tokenizer. :meth:`load` makes one.

    Nothing changes a model, so any number of threads may use it at once; the interpreter's lock is released while it runs. It cannot
    be pickled, and a process that is forked after a model was loaded cannot use it.
    """

    def __init__(self, native: _native.Model) -> None:
        super().__init__(native)
        warn(self._facts["notes"])

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            served = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{served}", name=name, obj=self)

    @classmethod
    def load(
        cls,
        name: str | os.PathLike[str] | None = None,
        *,
        dtype: DType = "f32",
        quantize: Literal["q8_0", "q4_0"] | None = None,
        adapter: str | os.PathLike[str] | Mapping[str, float] | None = None,
        processed: bool = False,
        prepend_bos: bool = False,
        threads: int | None = None,
        device: str = "cpu",
        implementation: Literal["auto", "fused", "eager"] = "auto",
        revision: str | None = None,
        offline: bool = False,
        cache_dir: str | os.PathLike[str] | None = None,
        endpoint: str | None = None,
        timeout: int | None = None,
        progress: bool = True,
    ) -> Model:
        """Loads a model.

        Args:
            name: A folder as transformers writes it, a GGUF file, a model on the Hugging Face Hub (``"gpt2"``, ``"owner/name"``,
                ``"owner/name/FILE.gguf"``, or an address there), or ``None`` for the demo model inside the package, a small GPT-2 trained on Shakespeare.
            dtype: The precision of the activations. With ``"f32"``, weights stay as they are in the file: f16, bf16 or quantized.
            quantize: Quantizes the weights as they load, to 8.5 or 4.5 bits each.
            adapter: A LoRA adapter in PEFT's format, as a folder or a name on the Hub, or several with their weights.
            processed: Shows the model as TransformerLens' ``HookedTransformer`` does by default: layer norms folded into the layers that
                read them, weights that write to the stream and the unembedding centered, value biases folded into those of the output.
                No probability changes. Such a model cannot be saved, quantized or trained.
            prepend_bos: Puts the model's first token before each text that is given as a string, as TransformerLens does by default;
                each method takes ``prepend_bos`` for its own texts.
            threads: CPU threads, for all models of this process; only the first model can say. All cores if there is no number.
            device: ``"cpu"``; ``"cuda:0"`` or ``"metal"`` in a package that was built for them.
            implementation: ``"fused"`` kernels without a (T, T) tensor, ``"eager"`` plain operations; ``"auto"`` is fused, but eager on Metal.
            revision: A branch, tag or commit of a model on the Hub.
            offline: Makes no request. ``HF_HUB_OFFLINE`` says so too; ``HF_HOME``, ``HF_HUB_CACHE``, ``HF_TOKEN`` and
                ``HF_ENDPOINT`` mean what they do for ``huggingface_hub``, and the cache is shared with it.
            cache_dir: The folder for downloaded models.
            endpoint: The address of the Hub or of a mirror.
            timeout: The seconds without data after which a request fails; 30 if there is no number.
            progress: Shows the progress of a download: as tqdm's bar, if tqdm is installed.

        Raises:
            FileNotFoundError: if there is no such folder, file or model.
            ValueError: if a file is damaged or does not fit its config, or an argument has no meaning.
            ConnectionError, TimeoutError, PermissionError, OSError: if the Hub does not give the model.
            RuntimeError: if ``threads`` differs from what the first model said, or this process was forked.
        """
        _set_threads(threads)
        for word, what in ((dtype, "dtype"), (device, "device"), (implementation, "implementation")):
            if not isinstance(word, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"{what}: expected a word, such as {'f32' if what == 'dtype' else 'cpu' if what == 'device' else 'fused'!r}, got {word!r}")
        adapters = adapter if isinstance(adapter, Mapping) else {} if adapter is None else {os.fspath(adapter): 1.0}
        return cls(
            _native.Model.load(
                {
                    "name": None if name is None else os.fspath(name),
                    "dtype": dtype,
                    "quantize": quantize,
                    "adapters": [(os.fspath(one), float(weight)) for one, weight in adapters.items()],
                    "processed": bool(processed),
                    "prepend_bos": bool(prepend_bos),
                    "device": device,
                    "implementation": implementation,
                    "revision": revision,
                    "offline": bool(offline),
                    "cache_dir": None if cache_dir is None else os.fspath(cache_dir),
                    "endpoint": endpoint,
                    "timeout": maybe(timeout, "timeout", 1),
                    "progress": Downloads() if progress else None,
                }
            )
        )

    # What the model is.

    @property
    def config(self) -> Mapping[str, Any]:
        """The fields of config.json, by their names there."""
        return dict(self._facts["config"])

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the model was made from: name, commit, dtype, device, formats of quantized weights, adapters."""
        return {name: value for name, value in self._facts.items() if name not in ("config", "notes", "generation_note")}

    @property
    def hook_points(self) -> Mapping[str, str]:
        """The names of all hook points, as in TransformerLens, each with the shape of the value there."""
        return dict(self._points.shapes)

    @property
    def parameters(self) -> Mapping[str, tuple[int, ...]]:
        """The names and shapes of all parameters, as in the checkpoint."""
        return {name: tuple(shape) for name, shape in self._own.parameters()}

    def parameter(self, name: str) -> Floats:
        """A copy of a parameter, in f32 if it is quantized: ``model.parameter("h.0.attn.c_attn.weight")``."""
        return np.asarray(self._own.parameter(name))

    def __repr__(self) -> str:
        config, facts = self._facts["config"], self._facts
        weights = f", weights in {', '.join(facts['quantized'])}" if facts["quantized"] else ", processed weights" if facts["processed"] else ""
        size = f"{config['n_layer']} layers of {config['n_head']} heads, width {config['n_embd']}"
        return f"Model({self.name}: {size}; {facts['dtype']} on {facts['device']}{weights})"

    def __copy__(self) -> Model:
        return self  # nothing changes it

    def __deepcopy__(self, memo: Any) -> Model:
        return self

    def __reduce__(self) -> Any:
        return self._own.__reduce__()

    # Looking.

    @overload
    def attention(self, text: list[str] | list[list[int]], *, compare: bool = False, **changes: Unpack[Changes]) -> list[Attention]: ...

    @overload
    def attention(self, text: Text, *, compare: bool = False, **changes: Unpack[Changes]) -> Attention: ...

    def attention(self, text: Texts, *, compare: bool = False, **changes: Unpack[Changes]) -> Attention | list[Attention]:
        """The attention of every head over a text. In a notebook it shows as a page: all heads on one sheet, each token by token.

        Args:
            text: The text, or a list of texts.
            compare: Puts the plain run beside the one with interventions.
            **changes: Interventions.

        Raises:
            ValueError: for ``compare`` without an intervention.
        """
        if compare and not changes:
            raise ValueError('compare: there is nothing to compare the plain run with; add an intervention, such as ablate="0.3"')
        rows, is_one = rows_of(self._own, text, prepend_bos=changes.get("prepend_bos"))
        if is_one:
            return self._attention(text if isinstance(text, str) else "", rows[0], compare, changes)
        texts: list[Any] = list(text)
        return [self._attention(one if isinstance(one, str) else "", ids, compare, changes) for one, ids in zip(texts, rows)]

    def _attention(self, text: str, ids: list[int], compare: bool, changes: Mapping[str, Any]) -> Attention:
        asked = changes_of(self._own, changes)
        found = self._run([ids], changes, logits="none", attentions=True)
        weights = np.concatenate([np.asarray(layer) for layer in found["attentions"]])
        said = self._own.said(ids, asked)

        def draw(path: str, head: Floats | None) -> bytes:
            which = weights if head is None else head
            return self._own.picture(path, self.name, ids, said, array_of(which, "weights", dtype="float32"))

        return Attention(
            text=text,
            tokens=self._own.tokens(ids),
            ids=ids,
            weights=weights,
            interventions=said,
            page=lambda: self._own.page(ids, asked, compare),
            draw=draw,
        )

    # Files.

    def save(self, folder: str | os.PathLike[str], *, dtype: Literal["f32", "f16", "bf16"] | None = None, overwrite: bool = False) -> None:
        """Writes config.json, model.safetensors and tokenizer.json into a folder, which transformers loads. Adapters are merged into the
        weights.

        Raises:
            ValueError: if the folder holds a model already, or the one that is loaded, or the weights are quantized.
        """
        self._own.save(os.fspath(folder), dtype, overwrite)

    def save_adapter(self, folder: str | os.PathLike[str], *, base: str | None = None, overwrite: bool = False) -> None:
        """Writes the adapter that was trained on the model, which PEFT loads.

        Args:
            folder: Where to.
            base: The name of the model that it belongs to, for the adapter's config.
            overwrite: Replaces an adapter that is there.
        """
        self._own.save_adapter(os.fspath(folder), base, overwrite)

    def quantize(self, path: str | os.PathLike[str], *, to: Literal["q8_0", "q4_0", "q4_k_m", "f16"] = "q8_0", overwrite: bool = False) -> Report:
        """Writes the model as a GGUF file with its tokenizer, which llama.cpp and :meth:`load` read.

        Args:
            path: A name that ends in ``.gguf``. The file appears whole or not at all.
            to: The type of the weights: 8.5 bits each, 4.5, 4.5 to 8.5, or 16.
            overwrite: Replaces a file that is there.

        Returns:
            The report of the command: ``bytes``, ``bits_per_parameter``, and the number of ``weights`` in each format.
        """
        report, notes = self._own.quantize(os.fspath(path), to, overwrite)
        warn(notes)
        found: Report = json.loads(report)
        return found

    def compare(
        self,
        other: Model,
        text: Text,
        *,
        tokens: int | None = None,
        window: int | None = None,
        kv_other: KvDType | None = None,
        progress: Progress | None = None,
    ) -> Comparison:
        """How two models predict a text, which may be longer than their contexts: it is cut into windows.

        Args:
            other: Another model with the same vocabulary.
            text: The text.
            tokens: Compares only so many tokens of the text.
            window: Tokens in a window; as many as both models read, if there is no number.
            kv_other: Lets the other model read keys and values from a cache of this precision.
            progress: Called with ``"tokens"``, how many are done, and how many there are.
        """
        if not isinstance(other, Model):
            raise TypeError(f"other: expected a Model, got {other!r}; Model.load opens one by its name")
        if isinstance(text, str):
            given: str | list[int] = text
        else:
            rows, is_one = rows_of(self._own, text)
            if not is_one:
                raise TypeError("text: expected one text, got several; compare them one by one")
            [given] = rows
        options = {"tokens": maybe(tokens, "tokens", 2), "window": maybe(window, "window", 2), "kv_other": kv_other}
        refuse_hooks(self._own)
        refuse_hooks(other._own)
        report, notes = self._own.compare(other._own, given, json.dumps(options), progress)
        warn(notes)
        found = json.loads(report)
        return Comparison(
            tokens=found["tokens"],
            perplexity=found["model"]["perplexity"],
            other_perplexity=found["other"]["perplexity"],
            mean_kl_divergence=found["mean_kl_divergence"],
            top_1_agreement=found["top_1_agreement"],
            largest_logit_difference=found["largest_logit_difference"],
        )

    # Writing.

    @overload
    def generate(self, prompt: str, **options: Unpack[Options]) -> Continuation: ...

    @overload
    def generate(self, prompt: list[str] | list[list[int]], **options: Unpack[Options]) -> list[Continuation]: ...

    @overload
    def generate(self, prompt: Texts, **options: Unpack[Options]) -> Continuation | list[Continuation]: ...

    def generate(self, prompt: Texts, **options: Unpack[Options]) -> Continuation | list[Continuation]:
        """Continues a prompt, or several at once. The same seed gives the same text, whatever else is in the batch.

        Args:
            prompt: One text or several, as strings or token ids.
            **options: All of them are optional, and interventions are among them:

        Options:
            max_new_tokens: The most tokens to add; 100, or as many as the context has room for, if there is no number.
            temperature: 1; divides the logits: 0 always takes the most probable token.
            top_k, top_p, min_p, typical_p: Which tokens to draw from, as in transformers. ``top_k`` is 40; ``None`` is all of them.
            repetition_penalty: 1; above 1, tokens of the text become less probable.
            greedy: Always takes the most probable token.
            beams: Searches for the most probable text with so many beams, as transformers does, in place of drawing one.
            length_penalty: 1; a found text's score is its log-probability divided by tokens to this power.
            early_stopping: Stops once ``beams`` texts have ended.
            seed: 0; the same seed draws the same text.
            stop: The text ends before the first of these strings.
            kv: The precision of the cached keys and values.
            draft: What guesses the next tokens, so that the model checks several in one pass: ``"lookup"``, ``"q4_0"``, ``"q8_0"``, or
                another model by its name. The text stays the same.
            batch: How many of several prompts to continue in each pass; all that fit, if there is no number.
            cuda_graph: Records the step for a token as one CUDA graph and launches it again for each further token, on CUDA with the fused
                implementation. The text stays the same.
            fwd_hooks: Functions at hook points, as for :meth:`run_with_hooks`; each pass has the new positions alone.
            progress: Called with ``"tokens"``, how many are done, and ``None``.
            Interventions, as for a pass. With several prompts, positions are those of each, and means need ``mean_of``.

        Returns:
            A :class:`Continuation`, or a list of them for a list of prompts.
        """
        rows, is_one = rows_of(self._own, prompt, prepend_bos=options.get("prepend_bos"))
        continued, notes = self._own.continued(self._generation(rows, options))
        warn(notes)
        found = [Continuation(text, ids, stopped_at, json.loads(report)) for ids, text, stopped_at, report in continued]
        return found[0] if is_one else found

    def stream(self, prompt: Text, **options: Unpack[Options]) -> Iterator[str]:
        """Like :meth:`generate`, for one prompt: gives the text piece by piece, as it comes. It has neither beams nor a draft."""
        given: Mapping[str, Any] = options
        for name in ("beams", "draft"):
            if given.get(name) is not None:
                raise TypeError(f"{name}: gives no text piece by piece; use generate")
        running = self._own.generate(self._generation([ids_of(self._own, prompt, prepend_bos=given.get("prepend_bos"))], given))

        def pieces() -> Iterator[str]:
            while (piece := running.step()) is not None:
                if piece:
                    yield piece
            if rest := running.finish():
                yield rest

        return pieces()

    def _generation(self, rows: list[list[int]], options: Mapping[str, Any]) -> dict[str, Any]:
        if note := self._facts["generation_note"]:
            warn([note])
        given = dict(options)
        top_k = maybe(given.pop("top_k", 40), "top_k", 1)
        draft = given.pop("draft", None)
        asked: dict[str, Any] = {
            "max_new_tokens": maybe(given.pop("max_new_tokens", None), "max_new_tokens"),
            "top_k": 0 if top_k is None else top_k,
            "greedy": bool(given.pop("greedy", False)),
            "beams": maybe(given.pop("beams", None), "beams", 1),
            "early_stopping": bool(given.pop("early_stopping", False)),
            "kv": given.pop("kv", None),
            "stop": _stops(given.pop("stop", None)),
            "draft": None if draft is None else os.fspath(draft),
            "batch": maybe(given.pop("batch", None), "batch", 1) or len(rows),
            "cuda_graph": bool(given.pop("cuda_graph", False)),
        }
        for name in ("temperature", "top_p", "min_p", "typical_p", "repetition_penalty", "length_penalty"):
            asked[name] = _finite(given.pop(name, None), name)
        return {
            "rows": rows,
            "options": json.dumps({name: value for name, value in asked.items() if value is not None}),
            "seed": count(given.pop("seed", 0), "seed"),
            "hooks": [*active(self._own)[0], *self._points.hooks(given.pop("fwd_hooks", ()))],
            "progress": given.pop("progress", None),
            "changes": changes_of(self._own, given, runs_hooks=True),
        }


def _finite(number: float | None, name: str) -> float | None:
    if number is None:
        return None
    if not math.isfinite(number):
        raise ValueError(f"{name} is {number}, expected a finite number")
    return float(number)


def _stops(stop: str | Sequence[str] | None) -> list[str]:
    several = [] if stop is None else [stop] if isinstance(stop, str) else list(stop)
    for one in several:
        if not isinstance(one, str):
            raise TypeError(f"stop: expected strings, got {one!r}")
        if not one:
            raise ValueError("stop: an empty string would end every text before it begins")
    return several
