"""What a cache of a pass says about the residual stream: its sums, its parts, and what they add to logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from ._types import Floats, PositionSlice


def sliced(values: Floats, positions: Any, axis: int) -> Floats:
    """Some positions of an axis; a number leaves the axis out."""
    if positions is None:
        return values
    if isinstance(positions, tuple):
        positions = slice(*positions)  # pyright: ignore[reportUnknownArgumentType]
    elif not isinstance(positions, (int, slice)):
        positions = np.asarray(positions)
    index: list[Any] = [slice(None)] * values.ndim
    index[axis] = positions
    found: Floats = values[tuple(index)]
    return found


class ResidualStream(Mapping[str, "Floats"]):
    """Methods of a cache that need its values and the weights of its model."""

    _model: Any
    _has_batch: bool

    def _weights(self, what: str) -> Any:
        if self._model is None:
            raise ValueError(f"{what}: needs the weights of the model, which a pickled cache does not have")
        return self._model

    def _layers(self) -> int:
        return 1 + max((int(key.split(".")[1]) for key in self if key.startswith("blocks.")), default=-1)

    def _upto(self, layer: int | None) -> int:
        layers = self._layers()
        found = layers if layer is None or layer == -1 else layer
        if not 0 <= found <= layers:
            raise ValueError(f"layer {layer}: expected 0 to {layers}, or -1 for all")
        return found

    def _finished(self, parts: list[Floats], labels: list[str], layer: int, mlp_input: bool, apply_ln: bool, positions: Any, return_labels: bool) -> Any:
        axis = 1 if self._has_batch else 0
        stack = np.stack([sliced(part, positions, axis) for part in parts])
        if apply_ln:
            stack = self.apply_ln_to_stack(stack, layer, mlp_input=mlp_input, pos_slice=positions)
        return (stack, labels) if return_labels else stack

    def apply_ln_to_stack(self, residual_stack: Floats, layer: int | None = None, *, mlp_input: bool = False, pos_slice: PositionSlice = None) -> Floats:
        """Parts of the stream as the layer norm before a block has them: less their means, divided by the deviation of the whole.

        Args:
            residual_stack: (parts, B, T, C), or what ``pos_slice`` leaves of it.
            layer: The block; ``None`` or -1 for the last layer norm.
            mlp_input: Takes the layer norm before the block's MLP.
            pos_slice: The positions that the parts have.
        """
        upto = self._upto(layer)
        name = "ln_final.hook_scale" if upto == self._layers() else f"blocks.{upto}.{'ln2' if mlp_input else 'ln1'}.hook_scale"
        scale = sliced(self[name], pos_slice, 1 if self._has_batch else 0)
        centered: Floats = residual_stack - residual_stack.mean(-1, keepdims=True)
        found: Floats = centered / scale
        return found

    def accumulated_resid(
        self,
        layer: int | None = None,
        *,
        incl_mid: bool = False,
        apply_ln: bool = False,
        pos_slice: PositionSlice = None,
        mlp_input: bool = False,
        return_labels: bool = False,
    ) -> Any:
        """The residual stream before each block up to ``layer``, (parts, B, T, C), as TransformerLens stacks it.

        Args:
            layer: The last block that is read; ``None`` or -1 also takes the stream after the last block.
            incl_mid: Also takes the stream between attention and MLP.
            apply_ln: Puts them through the layer norm that reads the last of them.
            pos_slice: Some positions.
            mlp_input: Also takes the stream before the MLP of block ``layer``.
            return_labels: Returns a list of names, too.
        """
        upto = self._upto(layer)
        parts: list[Floats] = []
        labels: list[str] = []
        for block in range(min(upto + 1, self._layers())):
            parts.append(self[f"blocks.{block}.hook_resid_pre"])
            labels.append(f"{block}_pre")
            if (incl_mid and block < upto) or (mlp_input and block == upto):
                parts.append(self[f"blocks.{block}.hook_resid_mid"])
                labels.append(f"{block}_mid")
        if upto == self._layers():
            parts.append(self[f"blocks.{upto - 1}.hook_resid_post"])
            labels.append("final_post")
        return self._finished(parts, labels, upto, mlp_input, apply_ln, pos_slice, return_labels)

    def decompose_resid(
        self,
        layer: int | None = None,
        *,
        mlp_input: bool = False,
        mode: Literal["all", "attn", "mlp"] = "all",
        apply_ln: bool = False,
        pos_slice: PositionSlice = None,
        incl_embeds: bool = True,
        return_labels: bool = False,
    ) -> Any:
        """What each part adds to the residual stream before block ``layer``, (parts, B, T, C): embeddings, attention and MLPs.

        Args:
            layer: The block; ``None`` or -1 is the end of the stream.
            mlp_input: Also takes the attention of block ``layer``.
            mode: ``"attn"`` or ``"mlp"`` alone, or ``"all"``.
            apply_ln: Puts them through the layer norm that reads their sum.
            pos_slice: Some positions.
            incl_embeds: Takes the embeddings, too.
            return_labels: Returns a list of names, too.
        """
        upto = self._upto(layer)
        parts: list[Floats] = []
        labels: list[str] = []
        if incl_embeds:
            embed, positions = self["hook_embed"], self["hook_pos_embed"]
            parts += [embed, np.broadcast_to(positions, embed.shape)]
            labels += ["embed", "pos_embed"]
        for block in range(upto):
            for kind in ("attn", "mlp"):
                if mode in ("all", kind):
                    parts.append(self[f"blocks.{block}.hook_{kind}_out"])
                    labels.append(f"{block}_{kind}_out")
        if mlp_input and mode in ("all", "attn") and upto < self._layers():
            parts.append(self[f"blocks.{upto}.hook_attn_out"])
            labels.append(f"{upto}_attn_out")
        return self._finished(parts, labels, upto, mlp_input, apply_ln, pos_slice, return_labels)

    def stack_head_results(
        self,
        layer: int | None = None,
        *,
        incl_remainder: bool = False,
        apply_ln: bool = False,
        pos_slice: PositionSlice = None,
        return_labels: bool = False,
    ) -> Any:
        """What each head below ``layer`` adds to the stream, without the biases of the output, (heads, B, T, C).

        Args:
            layer: The block; ``None`` or -1 takes all heads.
            incl_remainder: Adds what no head accounts for: the stream less all of them.
            apply_ln: Puts them through the layer norm that reads their sum.
            pos_slice: Some positions.
            return_labels: Returns a list of names such as ``"L0H3"``, too.
        """
        upto = self._upto(layer)
        parts: list[Floats] = []
        labels: list[str] = []
        for block in range(upto):
            results = self._head_results(block)
            parts += [np.take(results, head, axis=-2) for head in range(results.shape[-2])]
            labels += [f"L{block}H{head}" for head in range(results.shape[-2])]
        if incl_remainder:
            name = f"blocks.{upto - 1}.hook_resid_post" if upto else "blocks.0.hook_resid_pre"
            rest: Floats = self[name] - sum(parts, np.zeros_like(self[name]))
            parts.append(rest)
            labels.append("remainder")
        if not parts:
            raise ValueError("stack_head_results: there is no head before block 0")
        return self._finished(parts, labels, upto, False, apply_ln, pos_slice, return_labels)

    def _head_results(self, block: int) -> Floats:
        """(B, T, H, C)"""
        name = f"blocks.{block}.attn.hook_result"
        if name in self:
            return self[name]
        z = self[f"blocks.{block}.attn.hook_z"]
        found: Floats = np.einsum("...hd,hdc->...hc", z, self._weights("stack_head_results").W_O[block])
        return found

    def logit_attrs(
        self,
        residual_stack: Floats,
        tokens: Any,
        incorrect_tokens: Any = None,
        *,
        pos_slice: PositionSlice = None,
    ) -> Floats:
        """What each part of the stream adds to a token's logit, (parts, B, T), or what ``pos_slice`` leaves of it.

        Args:
            residual_stack: Parts of the final stream, without ``apply_ln``: (parts, B, T, C).
            tokens: A token as text or id, or the id of each text's, (B), or of each position's.
            incorrect_tokens: The tokens to compare them with.
            pos_slice: The positions that the parts have.

        The weight of the last layer norm counts with the unembedding, so that parts sum to the logit but for its biases in both views.
        """
        model = self._weights("logit_attrs")
        directions = self._directions(model, tokens)
        if incorrect_tokens is not None:
            directions = directions - self._directions(model, incorrect_tokens)
        gamma = 1.0 if model.cfg.processed else model.parameter("ln_f.weight")
        normed = self.apply_ln_to_stack(residual_stack, None, pos_slice=pos_slice)
        directions = directions * gamma
        # Directions of (B, C) belong to texts, whose parts may have positions: (parts, B, T, C).
        while 1 < directions.ndim < normed.ndim - 1:
            directions = directions[..., None, :]
        found: Floats = (normed * directions).sum(-1)
        return found

    def _directions(self, model: Any, tokens: Any) -> Floats:
        ids: Any = model.to_single_token(tokens) if isinstance(tokens, str) else tokens
        if hasattr(ids, "tolist"):
            ids = ids.tolist()
        if isinstance(ids, (list, tuple)):
            several: list[Any] = list(ids)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            ids = [model.to_single_token(one) if isinstance(one, str) else one for one in several]
        found: Floats = np.moveaxis(model.W_U[:, np.asarray(ids)], 0, -1)
        return found
