"""A model's shape and weights under TransformerLens' names, and its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from . import _native
from ._inputs import rows_of
from ._passes import Passes
from ._types import Floats, Text, Texts


@dataclass(frozen=True)
class ModelConfig:
    """A model's shape, in TransformerLens' words. ``model.config`` has config.json's."""

    model_name: str
    n_layers: int
    d_model: int
    n_heads: int
    d_head: int
    d_mlp: int
    n_ctx: int
    d_vocab: int
    act_fn: str
    eps: float
    normalization_type: str
    """``"LNPre"`` where layer norms are folded into the layers that read them, in the processed view; else ``"LN"``."""
    default_prepend_bos: bool
    """Whether the model's first token stands before each text that is given as a string. Here, by default it does not."""
    dtype: str
    device: str
    processed: bool
    """Whether weights are processed as TransformerLens does by default."""


class Weights(Passes):
    """What a :class:`Model` is made of."""

    def __init__(self, native: _native.Model) -> None:
        super().__init__(native)
        self._stacked: dict[str, Floats] = {}

    @property
    def cfg(self) -> ModelConfig:
        """The model's shape, in TransformerLens' words."""
        config, facts = self._facts["config"], self._facts
        return ModelConfig(
            model_name=self.name,
            n_layers=config["n_layer"],
            d_model=config["n_embd"],
            n_heads=config["n_head"],
            d_head=config["n_embd"] // config["n_head"],
            d_mlp=config.get("n_inner") or 4 * config["n_embd"],
            n_ctx=config["n_positions"],
            d_vocab=config["vocab_size"],
            act_fn=config["activation_function"],
            eps=config["layer_norm_epsilon"],
            normalization_type="LNPre" if facts["processed"] else "LN",
            default_prepend_bos=facts["prepend_bos"],
            dtype=facts["dtype"],
            device=facts["device"],
            processed=facts["processed"],
        )

    def weight(self, name: str) -> Floats:
        """A weight of all layers and heads by TransformerLens' name, such as ``"W_Q"``. It is copied once, and may not be written to.

        Halves are widened to f32, in which the model computes with them: NumPy would round sums of halves to halves.
        """
        if name not in self._stacked:
            found = np.asarray(self._own.stacked_weight(name))
            found = found.astype(np.float32) if found.dtype == np.float16 else found
            found.flags.writeable = False
            self._stacked[name] = found
        return self._stacked[name]

    @property
    def W_E(self) -> Floats:
        """The token embedding, (V, C)."""
        return self.weight("W_E")

    @property
    def W_pos(self) -> Floats:
        """The position embedding, (N, C)."""
        return self.weight("W_pos")

    @property
    def W_U(self) -> Floats:
        """The unembedding, (C, V)."""
        return self.weight("W_U")

    @property
    def b_U(self) -> Floats:
        """What the unembedding adds, (V): 0 unless the model is processed."""
        return self.weight("b_U")

    @property
    def W_Q(self) -> Floats:
        """Queries, (L, H, C, D)."""
        return self.weight("W_Q")

    @property
    def W_K(self) -> Floats:
        """Keys, (L, H, C, D)."""
        return self.weight("W_K")

    @property
    def W_V(self) -> Floats:
        """Values, (L, H, C, D)."""
        return self.weight("W_V")

    @property
    def W_O(self) -> Floats:
        """What heads write, (L, H, D, C)."""
        return self.weight("W_O")

    @property
    def b_Q(self) -> Floats:
        """(L, H, D)"""
        return self.weight("b_Q")

    @property
    def b_K(self) -> Floats:
        """(L, H, D)"""
        return self.weight("b_K")

    @property
    def b_V(self) -> Floats:
        """(L, H, D): 0 if the model is processed."""
        return self.weight("b_V")

    @property
    def b_O(self) -> Floats:
        """(L, C)"""
        return self.weight("b_O")

    @property
    def W_in(self) -> Floats:
        """Into the MLPs, (L, C, width)."""
        return self.weight("W_in")

    @property
    def b_in(self) -> Floats:
        """(L, width)"""
        return self.weight("b_in")

    @property
    def W_out(self) -> Floats:
        """Out of the MLPs, (L, width, C)."""
        return self.weight("W_out")

    @property
    def b_out(self) -> Floats:
        """(L, C)"""
        return self.weight("b_out")

    # Tokens.

    def to_tokens(self, text: Texts, *, prepend_bos: bool | None = None) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The ids of a text, (1, T), or of several of the same length, (B, T).

        Args:
            text: One text or several.
            prepend_bos: Whether the model's first token stands before each string; without it, as the model was loaded.

        Raises:
            ValueError: for texts of different lengths: passes take them as they are, padded on the left.
        """
        rows, _ = rows_of(self._own, text, prepend_bos=prepend_bos)
        lengths = sorted({len(row) for row in rows})
        if len(lengths) > 1:
            raise ValueError(f"to_tokens: texts of {lengths[0]} to {lengths[-1]} tokens make no array; give the texts themselves to a pass")
        return np.asarray(rows, dtype=np.int64)

    @overload
    def to_str_tokens(self, text: list[str] | list[list[int]], *, prepend_bos: bool | None = None) -> list[list[str]]: ...

    @overload
    def to_str_tokens(self, text: Text, *, prepend_bos: bool | None = None) -> list[str]: ...

    def to_str_tokens(self, text: Texts, *, prepend_bos: bool | None = None) -> list[str] | list[list[str]]:
        """The text of each token, of one text or of several."""
        rows, is_one = rows_of(self._own, text, prepend_bos=prepend_bos)
        found = [self._own.tokens(row) for row in rows]
        is_one = is_one or (len(rows) == 1 and not isinstance(text, list) and np.ndim(text) == 2)  # pyright: ignore[reportArgumentType]
        return found[0] if is_one else found

    def to_string(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        return self._own.decode([int(one) for one in np.asarray(ids).reshape(-1)])

    def to_single_token(self, text: str) -> int:
        """The id of the single token that spells a text.

        Raises:
            ValueError: if it is several tokens; a word inside a text begins with its space.
        """
        return self.tokenizer.token_to_id(text)

    def to_single_str_token(self, id: int) -> str:
        """The text of a token."""
        return self._own.tokens([int(id)])[0]

    def _of_cache(self) -> Weights:
        return self
