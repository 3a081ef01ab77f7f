"""Passes of a model: logits, losses, values and gradients at hook points, hooks that read and change them."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from . import _native
from ._base import Base
from ._hooks import ACTIVE, Points, active
from ._inputs import Changes, changes_of, rows_of
from ._numbers import array_of
from ._results import Cache, Gradients, Output, PointGradient
from ._types import Answers, Floats, HookFunction, MetricFunction, MetricName, Names, PositionSlice, Texts

if sys.version_info >= (3, 11):
    from typing import Self, Unpack
elif TYPE_CHECKING:
    from typing_extensions import Self, Unpack

Hooked = Iterable["tuple[Names, HookFunction]"]


class PassOptions(Changes, total=False):
    """What a pass takes besides its text."""

    loss: bool
    """Also computes the mean surprise of each token but the first, in nats."""
    output_hidden_states: bool
    """Also returns the L + 1 hidden states, as transformers does."""
    output_attentions: bool
    """Also returns the attention weights of each layer."""
    last_logits_only: bool
    """Computes the logits of the last position only, (B, 1, V)."""
    fwd_hooks: Hooked
    """Functions at hook points, as for :meth:`Model.run_with_hooks`."""
    start_at_layer: int
    """The first block that runs: the text is then the residual stream before it, (B, T, C) or (T, C). Below 0, from the end."""
    allow_nonfinite: bool
    """Returns logits and losses that are NaN or infinite instead of raising ``ValueError``."""


class CacheOptions(Changes, total=False):
    """What :meth:`Model.run_with_cache` takes besides its text and the names."""

    names_filter: Names
    """TransformerLens' word for ``names``."""
    pos_slice: PositionSlice
    """The positions to keep of each value: of attention, those of its queries."""
    remove_batch_dim: bool
    """Leaves the axis of texts out of each value; for a single text."""
    last_logits_only: bool
    start_at_layer: int
    """The first block that runs, as for a pass."""
    fwd_hooks: Hooked
    allow_nonfinite: bool
    incl_bwd: bool
    """Adds the gradient of a metric at each point, as ``NAME_grad``."""
    metric: MetricName | MetricFunction
    """What gradients are of: ``"loss"`` if there are neither a metric nor an answer."""
    answer: Answers
    against: Answers


ReturnType = Literal["output", "logits", "loss", "both"]


class Passes(Base):
    """How a :class:`Model` runs."""

    def __init__(self, native: _native.Model) -> None:
        super().__init__(native)
        self._points = Points(self._facts["config"]["n_layer"])

    @overload
    def __call__(self, text: Any, *, return_type: Literal["output"] = ..., stop_at_layer: None = None, **options: Unpack[PassOptions]) -> Output: ...

    @overload
    def __call__(self, text: Any, *, return_type: ReturnType | None = ..., stop_at_layer: int, **options: Unpack[PassOptions]) -> Floats: ...

    @overload
    def __call__(self, text: Any, *, return_type: Literal["logits"], stop_at_layer: None = None, **options: Unpack[PassOptions]) -> Floats: ...

    @overload
    def __call__(self, text: Any, *, return_type: Literal["loss"], stop_at_layer: None = None, **options: Unpack[PassOptions]) -> float: ...

    @overload
    def __call__(self, text: Any, *, return_type: Literal["both"], stop_at_layer: None = None, **options: Unpack[PassOptions]) -> tuple[Floats, float]: ...

    @overload
    def __call__(self, text: Any, *, return_type: None, stop_at_layer: None = None, **options: Unpack[PassOptions]) -> None: ...

    def __call__(self, text: Any, *, return_type: ReturnType | None = "output", stop_at_layer: int | None = None, **options: Unpack[PassOptions]) -> Any:
        """Runs the model over a text, ids, or a list of either; shorter texts are padded on the left.

        Args:
            text: One text or several, as strings or token ids; with ``start_at_layer``, a residual stream.
            return_type: ``"output"``, an :class:`Output` with all that was asked for; as in TransformerLens, ``"logits"``, ``"loss"``,
                ``"both"``, or ``None`` for nothing.
            stop_at_layer: Ends before this block, and returns the residual stream there, (B, T, C). Below 0, from the end.
            **options: All of them are optional: see :class:`~gpt2_candle._passes.PassOptions`; interventions are among them: see
                :class:`~gpt2_candle._inputs.Changes`.

        Raises:
            ValueError: for an empty text, one longer than the model's context, or an id or intervention that the model lacks.
            TypeError: for what is neither text nor ids.
        """
        given: dict[str, Any] = dict(options)
        loss = bool(given.pop("loss", False)) or return_type in ("loss", "both")
        hidden_states, attentions = bool(given.pop("output_hidden_states", False)), bool(given.pop("output_attentions", False))
        start = given.pop("start_at_layer", None)
        if loss and start is not None:
            raise TypeError("loss: a residual stream does not say which tokens it is of; compute it from the logits")
        rows, stream = self._begin(text, start, given)
        found = self._run(
            rows,
            given,
            stream=stream,
            stop=stop_at_layer,
            hooks=self._points.hooks(given.pop("fwd_hooks", ())),
            logits="none" if return_type in ("loss", None) else "last" if given.pop("last_logits_only", False) else "all",
            loss=loss,
            hidden_states=hidden_states,
            attentions=attentions,
            allow_nonfinite=bool(given.pop("allow_nonfinite", False)),
        )
        if return_type == "output" and stop_at_layer is None:
            return Output(
                ids=[] if stream is not None else rows,
                logits=np.asarray(found["logits"][0]),
                loss=float(np.asarray(found["loss"][0])) if loss else None,
                hidden_states=tuple(map(np.asarray, found["hidden_states"])),
                attentions=tuple(map(np.asarray, found["attentions"])),
            )
        return _returned(found, return_type)

    @overload
    def run_with_cache(self, text: Any, names: Names = None, *, return_type: Literal["logits"] = ..., stop_at_layer: int | None = None, **options: Unpack[CacheOptions]) -> tuple[Floats, Cache]: ...

    @overload
    def run_with_cache(self, text: Any, names: Names = None, *, return_type: Literal["loss"], stop_at_layer: None = None, **options: Unpack[CacheOptions]) -> tuple[float, Cache]: ...

    @overload
    def run_with_cache(self, text: Any, names: Names = None, *, return_type: Literal["both"], stop_at_layer: None = None, **options: Unpack[CacheOptions]) -> tuple[tuple[Floats, float], Cache]: ...

    @overload
    def run_with_cache(self, text: Any, names: Names = None, *, return_type: None, stop_at_layer: None = None, **options: Unpack[CacheOptions]) -> tuple[None, Cache]: ...

    def run_with_cache(self, text: Any, names: Names = None, *, return_type: Literal["logits", "loss", "both"] | None = "logits", stop_at_layer: int | None = None, **options: Unpack[CacheOptions]) -> tuple[Any, Cache]:
        """Runs the model and returns the logits (B, T, V) and the values at hook points.

        Args:
            text: One text or several, as strings or token ids. Shorter texts are padded on the left: of a text with n tokens, the last n
                positions are its own, and values before them mean nothing.
            names: The points: a name or the start of names up to a dot (``"blocks.3."``), a list, or a function that says for each name whether
                it is wanted. ``None`` is what TransformerLens caches by default.
            return_type: What to return beside the cache: ``"logits"``, ``"loss"``, ``"both"`` or ``None``.
            stop_at_layer: Ends before this block: the cache has the points below it, and the stream there takes the logits' place.
            **options: All of them are optional: see :class:`~gpt2_candle._passes.CacheOptions`. ``incl_bwd`` adds gradients, ``pos_slice``
                keeps some positions, ``remove_batch_dim`` leaves the first axis out. Interventions are among them.

        Returns:
            The logits, and the values by name. No array is a copy: ``resid_post`` of a layer and ``resid_pre`` of the next are the same
            memory. Attention patterns and scores, (B, H, T, T), are computed from the cached queries and keys when you read them.
        """
        given: dict[str, Any] = dict(options)
        wanted = given.pop("names_filter", None)
        if wanted is not None and names is not None:
            raise TypeError("names_filter: is another word for names; give one of them")
        start = given.pop("start_at_layer", None)
        points = self._points.find(names if wanted is None else wanted)
        points = [name for name in points if self._is_between(name, start, stop_at_layer)]
        positions, alone = given.pop("pos_slice", None), bool(given.pop("remove_batch_dim", False))
        asked = {name: given.pop(name, None) for name in ("metric", "answer", "against")}
        backward = bool(given.pop("incl_bwd", False))
        if not backward and any(value is not None for value in asked.values()):
            raise TypeError("metric, answer and against: say what incl_bwd takes gradients of; give it too")
        hooks = self._points.hooks(given.pop("fwd_hooks", ()))
        last, finite = bool(given.pop("last_logits_only", False)), not given.pop("allow_nonfinite", False)
        rows, stream = self._begin(text, start, given)
        values: dict[str, Any]
        if backward:
            if stream is not None or stop_at_layer is not None:
                raise TypeError("incl_bwd: takes gradients of a whole pass; leave start_at_layer and stop_at_layer out")
            metric: Any = "loss" if asked["metric"] is None and asked["answer"] is None else asked["metric"]
            measure = self._measure(asked["answer"], asked["against"], metric, together=True, texts=len(rows))
            together = self._gradients(rows, measure, points, given, hooks)
            values = {name: point.value for name, point in together.items()}
            values.update({f"{name}_grad": point.grad for name, point in together.items()})
            found: dict[str, Any] = {}
            if return_type is not None:
                found = self._run(rows, given, hooks=hooks, logits="last" if last else "all", loss=return_type != "logits", allow_nonfinite=not finite)
        else:
            found = self._run(
                rows,
                given,
                stream=stream,
                stop=stop_at_layer,
                hooks=hooks,
                points=points,
                logits="none" if return_type in ("loss", None) else "last" if last else "all",
                loss=return_type in ("loss", "both"),
                allow_nonfinite=not finite,
            )
            values = {name: found[name][0] for name in points}
        if alone and len(rows) != 1:
            raise ValueError(f"remove_batch_dim: is for one text, got {len(rows)}")
        cache = Cache(values, self._points.spellings, self._of_cache())
        if positions is not None or alone:
            cache = cache.reduced(positions, alone)
        return _returned(found, return_type), cache

    def run_with_hooks(
        self,
        text: Any,
        fwd_hooks: Hooked = (),
        bwd_hooks: Hooked = (),
        *,
        return_type: Literal["logits", "loss", "both"] | None = "logits",
        metric: MetricName | MetricFunction | None = None,
        answer: Answers | None = None,
        against: Answers | None = None,
        last_logits_only: bool = False,
        start_at_layer: int | None = None,
        stop_at_layer: int | None = None,
        allow_nonfinite: bool = False,
        **changes: Unpack[Changes],
    ) -> Any:
        """Runs the model with Python functions at hook points, and returns the logits (B, T, V).

        Args:
            text: One text or several, as strings or token ids; with ``start_at_layer``, a residual stream.
            fwd_hooks: Pairs of a point (or what :meth:`run_with_cache` takes as names) and a function ``fn(value, hook)``. It gets the
                value as an array of its own, and ``hook.name`` and ``hook.layer``. What it returns replaces the value; if it returns
                ``None``, what it wrote into the array does. Functions at the same point are called in order, after interventions.
            bwd_hooks: The same for gradients: they are called on the way back from the metric, from the last point to the first, and a
                gradient that one returns flows on in place of its own.
            return_type: ``"logits"``, ``"loss"``, ``"both"``, or ``None`` for nothing.
            metric: What ``bwd_hooks`` get gradients of; ``"loss"`` if there are neither a metric nor an answer.
            answer: The token of a metric of answers.
            against: The token to compare it with.
            last_logits_only: Computes the logits of the last position only.
            start_at_layer: The first block that runs, on a residual stream.
            stop_at_layer: Ends before this block, and returns the residual stream there.
            allow_nonfinite: Returns logits that are NaN or infinite instead of raising ``ValueError``.
            **changes: Interventions.

        Raises:
            ValueError: for a point that the model lacks, or a replacement of another shape. What a function raises comes out as it is.
        """
        given: dict[str, Any] = dict(changes)
        hooks, backward = self._points.hooks(fwd_hooks), self._points.hooks(bwd_hooks)
        rows, stream = self._begin(text, start_at_layer, given)
        if backward:
            if stream is not None or stop_at_layer is not None:
                raise TypeError("bwd_hooks: read gradients of a whole pass; leave start_at_layer and stop_at_layer out")
            named: Any = "loss" if metric is None and answer is None else metric
            self._gradients(rows, self._measure(answer, against, named, together=True, texts=len(rows)), [], given, hooks, backward)
            if return_type is None:
                return None
        elif metric is not None or answer is not None or against is not None:
            raise TypeError("metric, answer and against: say what bwd_hooks get gradients of; give some")
        found = self._run(
            rows,
            given,
            stream=stream,
            stop=stop_at_layer,
            hooks=hooks,
            logits="none" if return_type in ("loss", None) else "last" if last_logits_only else "all",
            loss=return_type in ("loss", "both"),
            allow_nonfinite=allow_nonfinite,
        )
        return _returned(found, return_type)

    @contextmanager
    def hooks(self, fwd_hooks: Hooked = (), bwd_hooks: Hooked = ()) -> Generator[Self, None, None]:
        """Hooks for all passes, gradients and generation of this model inside a ``with`` block, on the thread that runs it::

            with model.hooks([("blocks.0.attn.hook_z", silence)]):
                model("O Romeo", return_type="loss")

        Analyses, studies, scores and pages do not run them, and raise ``ValueError`` inside the block. ``bwd_hooks`` are called where
        gradients are computed: in :meth:`grad`, :meth:`run_with_hooks` with ``bwd_hooks``, and :meth:`run_with_cache` with ``incl_bwd``.
        """
        more = (self._own, self._points.hooks(fwd_hooks), self._points.hooks(bwd_hooks))
        token = ACTIVE.set((*ACTIVE.get(), more))
        try:
            yield self
        finally:
            ACTIVE.reset(token)

    def grad(
        self,
        text: Texts,
        names: Names,
        answer: Answers | None = None,
        against: Answers | None = None,
        *,
        metric: MetricName | MetricFunction | None = None,
        positions: int | Sequence[int] | None = None,
        reference: Any = None,
        fwd_hooks: Hooked = (),
        bwd_hooks: Hooked = (),
        **changes: Unpack[Changes],
    ) -> Gradients:
        """How a prediction depends on the values at hook points.

        Args:
            text: One text or several.
            names: The points, as for :meth:`run_with_cache`.
            answer: The token whose log-probability after the text is the metric, of all texts.
            against: Makes the metric the logit of ``answer`` less that of this token.
            metric: Another metric by its name, or a function of all logits (B, T, V) that returns a number and its gradient:
                :func:`torch_metric` makes one in torch. A metric by its name is one of each text.
            positions: Averages a metric of answers over these positions, instead of taking the last.
            reference: With ``metric="kl"``, the logits of another run, (B or 1, T or 1, V): the divergence from its predictions.
            fwd_hooks: Functions at hook points.
            bwd_hooks: Functions of gradients.
            **changes: Interventions.

        Returns:
            For each point, ``value`` and ``grad``, the metric's gradient, of the same shape; ``metric`` of the result is the metric of
            each text.
            After the last block, only the last position is computed if the metric reads no other: there T is 1.
        """
        given: dict[str, Any] = dict(changes)
        rows, _ = self._begin(text, None, given)
        if positions is not None and len({len(row) for row in rows}) > 1:
            raise ValueError("positions: texts of different lengths share none; give texts of the same length")
        measure = self._measure(answer, against, metric, positions, reference=reference, together=True, texts=len(rows))
        points = self._points.find(names)
        return self._gradients(rows, measure, points, given, self._points.hooks(fwd_hooks), self._points.hooks(bwd_hooks))

    def _gradients(
        self,
        rows: list[list[int]],
        measure: Mapping[str, Any],
        points: Sequence[str],
        changes: Mapping[str, Any],
        hooks: Sequence[tuple[str, Any]],
        backward: Sequence[tuple[str, Any]] = (),
    ) -> Gradients:
        forward, back = active(self._own)
        metric, _, pairs = self._own.gradients(
            {
                "rows": rows,
                "measure": measure,
                "points": list(points),
                "changes": changes_of(self._own, changes, runs_hooks=True),
                "hooks": [*forward, *hooks],
                "bwd_hooks": [*back, *backward],
            }
        )
        found = [PointGradient(np.asarray(value), np.asarray(gradient)) for value, gradient in pairs]
        return Gradients(dict(zip(points, found)), metric)

    def _begin(self, text: Any, start: int | None, given: Mapping[str, Any]) -> tuple[list[list[int]], tuple[int, _native.Array] | None]:
        """The rows of a pass; where it starts at a later block, stand-ins of them, and that block with its stream."""
        if start is None:
            return rows_of(self._own, text, prepend_bos=given.get("prepend_bos"))[0], None
        stream = np.asarray(text.detach() if hasattr(text, "detach") else text)
        stream = stream[None] if stream.ndim == 2 else stream
        width = self._facts["config"]["n_embd"]
        if stream.ndim != 3 or stream.shape[2] != width:
            raise ValueError(f"start_at_layer: expected the residual stream, (B, T, {width}), got {stream.shape}")
        name = "float64" if self._facts["dtype"] == "f64" else "float32"
        return [[0] * stream.shape[1]] * stream.shape[0], (self._layer(start, "start_at_layer"), array_of(stream, "the stream", dtype=name))

    def _layer(self, layer: int, what: str) -> int:
        layers = self._facts["config"]["n_layer"]
        found = layer + layers if layer < 0 else layer
        if not 0 <= found <= layers:
            raise ValueError(f"{what} is {layer}, expected {-layers} to {layers}")
        return found

    def _is_between(self, name: str, start: int | None, stop: int | None) -> bool:
        """Whether a pass from one block to another reaches a point."""
        if name.startswith("blocks."):
            layer = int(name.split(".")[1])
            first = 0 if start is None else self._layer(start, "start_at_layer")
            return first <= layer and (stop is None or layer < self._layer(stop, "stop_at_layer"))
        return start is None if name in ("hook_embed", "hook_pos_embed") else stop is None

    def _of_cache(self) -> Any:
        """What a cache asks its model for: see :class:`Cache`."""
        raise NotImplementedError

    def _run(
        self,
        rows: list[list[int]],
        changes: Mapping[str, Any],
        *,
        stream: tuple[int, _native.Array] | None = None,
        stop: int | None = None,
        hooks: Sequence[tuple[str, Any]] = (),
        points: Sequence[str] = (),
        logits: str = "all",
        loss: bool = False,
        hidden_states: bool = False,
        attentions: bool = False,
        allow_nonfinite: bool = False,
    ) -> dict[str, list[Any]]:
        return self._own.run(
            {
                "rows": rows,
                "changes": changes_of(self._own, changes, runs_hooks=True),
                "hooks": [*active(self._own)[0], *hooks],
                "points": list(points),
                "logits": logits,
                "loss": bool(loss),
                "hidden_states": bool(hidden_states),
                "attentions": bool(attentions),
                "start": stream,
                "stop": None if stop is None else self._layer(stop, "stop_at_layer"),
                "allow_nonfinite": bool(allow_nonfinite),
            }
        )


def _returned(found: Mapping[str, Any], return_type: str | None) -> Any:
    """What a pass returns."""
    if "stream" in found:
        return np.asarray(found["stream"][0])
    if return_type is None:
        return None
    loss = float(np.asarray(found["loss"][0])) if return_type in ("loss", "both") else 0.0
    if return_type == "loss":
        return loss
    logits = np.asarray(found["logits"][0])
    return (logits, loss) if return_type == "both" else logits
