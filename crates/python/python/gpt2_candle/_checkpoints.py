"""Models and adapters as files: what is in them, other files made of them, and how exactly this build computes with them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Literal

from . import _native
from ._base import Report
from ._notes import warn
from ._numbers import count, maybe
from ._progress import Downloads

SaveDType = Literal["f32", "f16", "bf16", "f64"]


def inspect(
    name: str | os.PathLike[str] | None = None,
    *,
    model: str | os.PathLike[str] | None = None,
    adapter: str | os.PathLike[str] | None = None,
    points: bool = False,
    revision: str | None = None,
    offline: bool = False,
    cache_dir: str | os.PathLike[str] | None = None,
    endpoint: str | None = None,
    timeout: int | None = None,
    progress: bool = True,
) -> Report:
    """A checkpoint's config and tensors, and whether they match; or what an adapter changes, and by how much. Of a model on the Hub that
    is not in the cache, it reads a few kilobytes.

    Args:
        name: A model as :meth:`Model.load` takes it, or the folder of an adapter; the demo model, if there is no name.
        model: The same for a model alone; beside ``adapter``, the model whose weights it is compared with.
        adapter: An adapter, as a folder or a name on the Hub.
        points: Lists the points of a run instead, with their names and shapes.
        revision, offline, cache_dir, endpoint, timeout, progress: As for :meth:`Model.load`.

    Returns:
        The report of the command. ``report["audit"]["clean"]`` of a model says whether nothing is wrong with it, ``report["findings"]``
        what a reader should know.

    Raises:
        FileNotFoundError: if there is no such model.
        ValueError: if a file cannot be read.
    """
    if name is not None and model is not None and adapter is None:
        raise TypeError("model: is the same as name; give one of them")
    adapters = {} if adapter is None else {os.fspath(adapter): 1.0}
    named = _named(model, adapters, revision, offline, cache_dir, endpoint, timeout, progress)
    given = None if name is None else os.fspath(name)
    return _report(_native.inspect_points(given, named) if points else _native.inspect_named(given, named))


def quantize(
    name: str | os.PathLike[str] | None,
    out: str | os.PathLike[str],
    *,
    to: Literal["q8_0", "q4_0", "q4_k_m", "f16"] = "q8_0",
    overwrite: bool = False,
    revision: str | None = None,
    offline: bool = False,
    cache_dir: str | os.PathLike[str] | None = None,
    endpoint: str | None = None,
    timeout: int | None = None,
    progress: bool = True,
) -> Report:
    """Writes a model as a GGUF file with its tokenizer, without loading it. :meth:`Model.quantize` does so with a model that is loaded.

    Args:
        name: A model as :meth:`Model.load` takes it; ``None`` is the demo model.
        out: A name that ends in ``.gguf``. The file appears whole or not at all.
        to: The type of the weights: 8.5 bits each, 4.5, 4.5 to 8.5, or 16.
        overwrite: Replaces a file that is there.
        revision, offline, cache_dir, endpoint, timeout, progress: As for :meth:`Model.load`.

    Returns:
        The report of the command: ``bytes``, ``bits_per_parameter``, and the number of ``weights`` in each format.

    Raises:
        ValueError: if the model is quantized already, has no tokenizer, or the file may not be written.
    """
    named = _named(name, {}, revision, offline, cache_dir, endpoint, timeout, progress)
    return _report(_native.quantize_named(named, os.fspath(out), to, bool(overwrite)))


def merge(
    out: str | os.PathLike[str],
    *,
    adapter: str | os.PathLike[str] | Mapping[str, float],
    model: str | os.PathLike[str] | None = None,
    save_dtype: SaveDType = "f32",
    overwrite: bool = False,
    revision: str | None = None,
    offline: bool = False,
    cache_dir: str | os.PathLike[str] | None = None,
    endpoint: str | None = None,
    timeout: int | None = None,
    progress: bool = True,
) -> Report:
    """Adds LoRA adapters to a model's weights, and writes the folder of a plain model, which transformers loads, too.

    Args:
        out: The folder for config.json, model.safetensors and tokenizer.json.
        adapter: An adapter in PEFT's format, as a folder or a name on the Hub, or several with their weights. A weight of -1 takes one
            out again.
        model: The model; ``None`` is the demo model.
        save_dtype: The precision of the saved weights.
        overwrite: Replaces a model that is there.
        revision, offline, cache_dir, endpoint, timeout, progress: As for :meth:`Model.load`.

    Returns:
        The report of the command: ``model``, ``adapters``, ``out``, ``parameters``.

    Raises:
        ValueError: if an adapter does not fit the model, its weights are quantized, or the folder holds a model already.
    """
    adapters = {name: float(weight) for name, weight in adapter.items()} if isinstance(adapter, Mapping) else {os.fspath(adapter): 1.0}
    named = _named(model, adapters, revision, offline, cache_dir, endpoint, timeout, progress)
    return _report(_native.merge_named(named, _new_model(out, save_dtype, overwrite)))


def import_model(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    save_dtype: SaveDType = "f32",
    overwrite: bool = False,
    revision: str | None = None,
    offline: bool = False,
    cache_dir: str | os.PathLike[str] | None = None,
    endpoint: str | None = None,
    timeout: int | None = None,
    progress: bool = True,
) -> Report:
    """Writes a model that another program saved as a folder that transformers loads: nanoGPT's ckpt.pt, llm.c's gpt2_124M.bin, GGUF,
    weights of torch.save or safetensors with a config.json beside them. A file is known by its content.

    Args:
        source: The file or folder, or the name of a model on the Hub.
        out: The folder for config.json, model.safetensors and, if there is a tokenizer, tokenizer.json.
        save_dtype: The precision of the saved weights.
        overwrite: Replaces a model that is there.
        revision, offline, cache_dir, endpoint, timeout, progress: As for :meth:`Model.load`.

    Returns:
        The report of the command: ``parameters``, whether there was a ``tokenizer``, and ``notes``, which say what was read how.

    Raises:
        ValueError: if the files do not fit one another, or the folder holds a model already.
    """
    named = _named(None, {}, revision, offline, cache_dir, endpoint, timeout, progress)
    return _report(_native.import_named(os.fspath(source), named, _new_model(out, save_dtype, overwrite)))


def verify(
    name: str | os.PathLike[str] | None = None,
    *,
    device: str = "auto",
    seed: int = 0,
    revision: str | None = None,
    offline: bool = False,
    cache_dir: str | os.PathLike[str] | None = None,
    endpoint: str | None = None,
    timeout: int | None = None,
    progress: bool = True,
) -> Report:
    """Compares every way in which this build computes attention, layers and a model's logits on a device with plain operations in f64 on
    the CPU.

    Args:
        name: A model as :meth:`Model.load` takes it; the demo model, if there is no name.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``metal``.
        seed: The seed of the random inputs.
        revision, offline, cache_dir, endpoint, timeout, progress: As for :meth:`Model.load`.

    Returns:
        The report of the command. ``report["passed"]`` says whether every path is within its tolerance, ``report["checks"]`` has each
        with its error.

    Raises:
        ValueError: if a file cannot be read.
    """
    named = _named(name, {}, revision, offline, cache_dir, endpoint, timeout, progress)
    return _report(_native.verify_named(named, device, count(seed, "seed")))


def _new_model(out: str | os.PathLike[str], save_dtype: str, overwrite: bool) -> str:
    return json.dumps({"out": os.fspath(out), "save_dtype": save_dtype, "overwrite": bool(overwrite)})


def _named(
    model: str | os.PathLike[str] | None,
    adapters: Mapping[str, float],
    revision: str | None,
    offline: bool,
    cache_dir: str | os.PathLike[str] | None,
    endpoint: str | None,
    timeout: int | None,
    progress: bool,
) -> dict[str, Any]:
    """A model by its name, for the native half."""
    return {
        "name": None if model is None else os.fspath(model),
        "dtype": "f32",
        "quantize": None,
        "adapters": list(adapters.items()),
        "processed": False,
        "prepend_bos": False,
        "device": "cpu",
        "implementation": "auto",
        "revision": revision,
        "offline": bool(offline),
        "cache_dir": None if cache_dir is None else os.fspath(cache_dir),
        "endpoint": endpoint,
        "timeout": maybe(timeout, "timeout", 1),
        "progress": Downloads() if progress else None,
    }


def _report(found: tuple[str, list[str]]) -> Report:
    report, notes = found
    warn(notes)
    made: Report = json.loads(report)
    return made
