"""Dictionaries of features: sparse autoencoders and transcoders."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import _native
from ._notes import warn
from ._numbers import array_of, count, maybe
from ._progress import Downloads
from ._types import Floats


class Dictionary:
    """A sparse autoencoder or transcoder in SAELens' form. :meth:`load` makes one; :meth:`Model.features` says what its features do
    in a text, and the interventions ``ablate_feature``, ``scale_feature`` and ``set_feature`` change them.

    Nothing changes it, so any number of threads may use it at once. It cannot be pickled.
    """

    def __init__(self, native: _native.Dictionary) -> None:
        self._own = native
        found: dict[str, Any] = json.loads(native.facts())
        self.facts: dict[str, Any] = found["about"]
        """Its name, the values that it reads and predicts, and the number of features; of one on the Hub, commit and hash."""
        self.cfg: dict[str, Any] = found["cfg"]
        """Its settings, under SAELens' names: ``architecture``, ``d_in``, ``d_sae``, ``d_out``, ``hook_name``, ``k`` and so on."""
        self._decodes_with_input = bool(found["decodes_with_input"])
        warn(found["notes"])

    @classmethod
    def load(
        cls,
        name: str | os.PathLike[str],
        *,
        offline: bool = False,
        cache_dir: str | os.PathLike[str] | None = None,
        endpoint: str | None = None,
        timeout: int | None = None,
        progress: bool = True,
    ) -> Dictionary:
        """Loads a dictionary.

        Args:
            name: A folder as SAELens or :func:`train_features` writes it, or ``"owner/name/FOLDER"`` on the Hugging Face Hub.
            offline: Makes no request.
            cache_dir: The folder for what is downloaded.
            endpoint: The address of the Hub or of a mirror.
            timeout: The seconds without data after which a request fails; 30 if there is no number.
            progress: Shows the progress of a download.

        Raises:
            FileNotFoundError: if there is no such dictionary on the Hub.
            ValueError: if there is no such folder, or a file is damaged or of an architecture that is not supported.
            ConnectionError, TimeoutError, PermissionError, OSError: if the Hub does not give it.
        """
        request = {
            "name": os.fspath(name),
            "offline": bool(offline),
            "cache_dir": None if cache_dir is None else os.fspath(cache_dir),
            "endpoint": endpoint,
            "timeout": maybe(timeout, "timeout", 1),
            "progress": Downloads() if progress else None,
        }
        return cls(_native.Dictionary.load(request))

    @property
    def name(self) -> str:
        """Its folder, or its name on the Hub with the commit."""
        return str(self.facts["name"])

    @property
    def W_dec(self) -> Floats:
        """A copy of the decoder's weight, (d_sae, d_out): a row for each feature."""
        return np.asarray(self._own.parameter("W_dec"))

    @property
    def W_enc(self) -> Floats:
        """A copy of the encoder's weight, (d_in, d_sae): a column for each feature."""
        return np.asarray(self._own.parameter("W_enc"))

    @property
    def b_enc(self) -> Floats:
        """A copy of the encoder's bias, (d_sae): of a gated dictionary, that of its gate."""
        return np.asarray(self._own.parameter("b_enc"))

    @property
    def b_dec(self) -> Floats:
        """A copy of the decoder's bias, (d_out)."""
        return np.asarray(self._own.parameter("b_dec"))

    def direction(self, feature: int) -> Floats:
        """What a feature adds to what is rebuilt per unit of its activation, (d_out): its row of ``W_dec``, divided by the row's norm
        where activations are multiplied by it.
        """
        return np.asarray(self._own.direction(count(feature, "feature", 0, int(self.cfg["d_sae"]) - 1)))

    def encode(self, values: ArrayLike) -> Floats:
        """The activations of all features, (.., d_sae), of values (.., d_in) at the point ``cfg["hook_name"]``; the heads of a position
        are one row.

        Raises:
            ValueError: for NaN or infinity, or another width.
        """
        return np.asarray(self._own.encode(self._rows(values, "values", "d_in")))

    def decode(self, features: ArrayLike, values: ArrayLike | None = None) -> Floats:
        """What activations (.., d_sae) are decoded to, (.., d_out).

        Args:
            features: The activations, as :meth:`encode` returns them, or changed.
            values: The values that were encoded. Only dictionaries that normalize what they read, or add a linear map of it, need them.

        Raises:
            ValueError: if ``values`` are needed, or a shape does not fit.
        """
        if values is None and self._decodes_with_input:
            raise ValueError(f"{self.name}: what it decodes to depends on the values that were encoded; give values=")
        given = None if values is None else self._rows(values, "values", "d_in")
        return np.asarray(self._own.decode(self._rows(features, "features", "d_sae"), given))

    def _rows(self, values: ArrayLike, what: str, width: str) -> _native.Array:
        rows: Floats = np.asarray(values)
        expected = int(self.cfg[width])
        if rows.ndim == 0 or rows.shape[-1] != expected:
            raise ValueError(f"{what}: expected an array (.., {expected}), got one of shape {rows.shape}")
        array = array_of(rows, what, dtype="float32")
        if not np.isfinite(np.asarray(array)).all():
            raise ValueError(f"{what}: has NaN, or a number beyond f32; a dictionary needs finite numbers")
        return array

    def __repr__(self) -> str:
        cfg = self.cfg
        predicts = "" if cfg["hook_name_out"] == cfg["hook_name"] else f", predicts {cfg['hook_name_out']}"
        return f"Dictionary({self.name!r}: {cfg['architecture']}, {cfg['d_sae']} features of {cfg['hook_name']}{predicts})"
