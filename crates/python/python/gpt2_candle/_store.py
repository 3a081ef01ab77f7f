"""Recorded values as NumPy arrays, read where they lie on disk."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

INDEX = "store.json"
_DTYPES: dict[str, str] = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "U32": "<u4"}
_OPEN = 64
"""Shards that are mapped at a time: each takes a file handle."""


class Store:
    """The values that :meth:`Model.record` or ``gpt2 record`` wrote into a folder.

    Args:
        path: The folder.

    Raises:
        FileNotFoundError: if there is no store.
        ValueError: if it is damaged, or the run that writes it has not finished.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        """The folder."""
        try:
            index: Any = json.loads((self.path / INDEX).read_text(encoding="utf-8"))
            names, facts, shards = index["values"], index["facts"], index["shards"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self.path / INDEX}: is not the index of a store: {error}") from error
        if shards is None:
            raise ValueError(f"{self.path}: shards are missing: the run that writes them has not finished")
        self.names: list[str] = [str(name) for name in names]
        """The names of the values."""
        self.facts: dict[str, Any] = dict(facts)
        """What made the store: the model, the points, the settings."""
        self.report: dict[str, Any] | None = None
        """What :meth:`Model.record` reported, if it has just made this store."""
        self._shards: list[int] = [int(tokens) for tokens in shards]
        self._open: dict[int, dict[str, NDArray[Any]]] = {}

    def __len__(self) -> int:
        """The number of tokens."""
        return sum(self._shards)

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r}: {len(self)} tokens at {', '.join(self.names)})"

    def values(self, name: str | None = None) -> Rows:
        """The value of this name, or the only one, (tokens, ..): an array that is read as it is indexed.

        Raises:
            KeyError: if the store has no such value, or several and none is named.
        """
        if name is None and len(self.names) == 1:
            name = self.names[0]
        if name is None or name not in self.names:
            raise KeyError(f"{self.path}: {'has several values' if name is None else f'has no {name}'}; it has {', '.join(self.names)}")
        return Rows(self, name)

    @property
    def tokens(self) -> NDArray[np.uint32]:
        """The id of each token."""
        return self._all("ids")

    @property
    def documents(self) -> NDArray[np.uint32]:
        """The document of each token, counted from 0."""
        return self._all("documents")

    @property
    def positions(self) -> NDArray[np.uint32]:
        """The position of each token in its document, counted from 0."""
        return self._all("positions")

    def _all(self, name: str) -> NDArray[Any]:
        return np.concatenate([np.zeros(0, np.uint32), *(self._shard(i)[name] for i in range(len(self._shards)))])

    def _shard(self, number: int) -> dict[str, NDArray[Any]]:
        """The tensors of a shard, mapped into memory."""
        found = self._open.get(number)
        if found is None:
            found = _mapped(self.path / f"{number:05}.safetensors", self._shards[number], [*self.names, "ids", "documents", "positions"])
            while len(self._open) >= _OPEN:
                self._open.pop(next(iter(self._open)))
            self._open[number] = found
        return found


class Rows:
    """A value of a store, (tokens, ..). ``rows[5]``, ``rows[:100]`` and ``rows[[3, 8]]`` read no more than they return;
    ``numpy.asarray(rows)`` reads all.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._store, self.name = store, name
        sizes = store._shards
        self._ends: NDArray[np.int64] = np.cumsum(np.asarray(sizes, dtype=np.int64))
        first: NDArray[Any] = self._part(0) if sizes else np.zeros(0, np.float32)
        self.shape: tuple[int, ...] = (len(store), *first.shape[1:])
        """The shape, tokens first."""
        self.dtype: np.dtype[Any] = first.dtype
        """The dtype."""

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getattr__(self, name: str) -> Any:
        if name == "T" or not name.startswith("_") and callable(getattr(np.ndarray, name, None)):
            raise AttributeError(f"values in files are no array: values[:].{name} reads all of them first")
        raise AttributeError(f"the rows of a store have no {name!r}")

    def __repr__(self) -> str:
        return f"Rows({self.name!r}, shape={self.shape}, dtype={self.dtype})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        values = self[:]
        return np.array(values, dtype=dtype) if copy else np.asarray(values, dtype=dtype)

    def __getitem__(self, key: int | np.integer[Any] | slice | Sequence[int] | NDArray[Any] | tuple[Any, ...]) -> NDArray[Any]:
        if isinstance(key, tuple):
            first, rest = key[0], key[1:]
            if isinstance(first, (int, np.integer)):
                return np.asarray(self[int(first)][rest])  # pyright: ignore[reportUnknownArgumentType]
            rows: NDArray[Any] = self[first]
            return np.asarray(rows[(slice(None), *rest)])
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            return self._between(start, max(start, stop)) if step == 1 else self._chosen(np.arange(start, stop, step))
        if isinstance(key, (int, np.integer)):
            number = int(key)  # pyright: ignore[reportUnknownArgumentType]
            if not -len(self) <= number < len(self):
                raise IndexError(f"{self.name}: there is no token {number}, expected 0 to {len(self) - 1}")
            number %= len(self)
            return np.asarray(self._between(number, number + 1)[0])
        chosen = np.asarray(key)
        if chosen.dtype == np.bool_:
            if chosen.shape != (len(self),):
                raise IndexError(f"{self.name}: a mask of shape {chosen.shape}, expected ({len(self)},)")
            chosen = np.flatnonzero(chosen)
        return self._chosen(chosen)

    def _part(self, shard: int) -> NDArray[Any]:
        return self._store._shard(shard)[self.name]

    def _between(self, start: int, stop: int) -> NDArray[Any]:
        """The rows from ``start`` to ``stop``: where they lie, if that is one shard, else a copy."""
        parts: list[NDArray[Any]] = []
        for shard, end in enumerate(self._ends.tolist()):
            size = self._store._shards[shard]
            begin = end - size
            if start < end and stop > begin:
                parts.append(self._part(shard)[max(start - begin, 0) : stop - begin])
        if not parts:
            return np.zeros((0, *self.shape[1:]), self.dtype)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _chosen(self, chosen: NDArray[Any]) -> NDArray[Any]:
        """A copy of single rows."""
        if chosen.size == 0:
            return np.zeros((*chosen.shape, *self.shape[1:]), self.dtype)
        if chosen.dtype.kind not in "iu":
            raise IndexError(f"{self.name}: rows are chosen by integers, got {chosen.dtype}")
        flat: NDArray[np.int64] = chosen.reshape(-1).astype(np.int64)
        wrong = flat[(flat < -len(self)) | (flat >= len(self))]
        if wrong.size:
            raise IndexError(f"{self.name}: there is no token {int(wrong[0])}, expected 0 to {len(self) - 1}")
        flat = flat % len(self)
        shards = np.searchsorted(self._ends, flat, side="right")
        found: NDArray[Any] = np.empty((flat.size, *self.shape[1:]), self.dtype)
        places: list[int] = np.unique(shards).tolist()
        for shard in places:
            here = shards == shard
            size = self._store._shards[shard]
            found[here] = self._part(shard)[flat[here] - (int(self._ends[shard]) - size)]
        return found.reshape((*chosen.shape, *self.shape[1:]))


def _mapped(path: Path, tokens: int, names: list[str]) -> dict[str, NDArray[Any]]:
    """Tensors of a safetensors file, where they lie."""
    raw: NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r")
    try:
        start = 8 + int.from_bytes(raw[:8].tobytes(), "little")
        header: Any = json.loads(raw[8:start].tobytes())
        found: dict[str, NDArray[Any]] = {}
        for name in names:
            begin, end = header[name]["data_offsets"]
            numbers = raw[start + begin : start + end].view(_DTYPES[header[name]["dtype"]])
            found[name] = numbers.reshape(header[name]["shape"])
            if found[name].shape[:1] != (tokens,):
                raise ValueError(f"{name} has the shape {found[name].shape}, expected {tokens} tokens")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: is damaged: {error}; remove it, and record the same again to have it back") from error
    return found
