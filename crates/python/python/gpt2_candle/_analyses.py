"""Published analyses of a model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike

from . import _native
from ._base import Report
from ._hooks import refuse_hooks
from ._inputs import Changes, changes_of, head_name, ids_of, listed, refuse_one_each, rows_of
from ._numbers import count
from ._passes import Passes
from ._results import Effects, Map, Scores
from ._types import Answers, AnswersOfEach, Floats, HeadName, MetricFunction, MetricName, Parts, Text, Texts

if sys.version_info >= (3, 11):
    from typing import Unpack
elif TYPE_CHECKING:
    from typing_extensions import Unpack


AXES: dict[str, tuple[str, ...]] = {
    "heads": ("layer", "head"),
    "heads_by_position": ("layer", "head", "position"),
    "streams": ("layer", "position"),
    "attention": ("layer",),
    "attention_by_position": ("layer", "position"),
    "mlps": ("layer",),
    "mlps_by_position": ("layer", "position"),
}


class Analyses(Passes):
    """What :class:`Model` can say about texts and heads. Each method names its paper."""

    @overload
    def lens(
        self, text: list[str] | list[list[int]], position: int = -1, *, top_k: int = 5, allow_nonfinite: bool = False, **changes: Unpack[Changes]
    ) -> list[list[list[tuple[str, float]]]]: ...

    @overload
    def lens(self, text: Text, position: int = -1, *, top_k: int = 5, allow_nonfinite: bool = False, **changes: Unpack[Changes]) -> list[list[tuple[str, float]]]: ...

    def lens(self, text: Texts, position: int = -1, *, top_k: int = 5, allow_nonfinite: bool = False, **changes: Unpack[Changes]) -> Any:
        """The logit lens: what each layer's residual stream would predict (nostalgebraist 2020).

        Args:
            text: The text, or a list of texts.
            position: The position whose next token to predict; below 0, from the end.
            top_k: How many tokens to list for each layer.
            allow_nonfinite: Returns NaN and infinity instead of raising.
            **changes: Interventions.

        Returns:
            For the stream before the first block and after each, the ``top_k`` most probable tokens and their probabilities.
        """

        def of(ids: list[int]) -> list[list[tuple[str, float]]]:
            report, _ = self._lens(ids, position, top_k, allow_nonfinite, changes)
            return [[(guess["token"], guess["probability"]) for guess in layer] for layer in report["layers"]]

        return self._each(text, changes, of)

    @overload
    def lens_logits(self, text: list[str] | list[list[int]], position: int = -1, *, allow_nonfinite: bool = False, **changes: Unpack[Changes]) -> list[Floats]: ...

    @overload
    def lens_logits(self, text: Text, position: int = -1, *, allow_nonfinite: bool = False, **changes: Unpack[Changes]) -> Floats: ...

    def lens_logits(self, text: Texts, position: int = -1, *, allow_nonfinite: bool = False, **changes: Unpack[Changes]) -> Any:
        """The same as logits, (L + 1, V). The last row holds the model's own."""

        def of(ids: list[int]) -> Floats:
            return self._lens(ids, position, 1, allow_nonfinite, changes)[1]["lens"]

        return self._each(text, changes, of)

    def _each(self, text: Texts, changes: Mapping[str, Any], of: Callable[..., Any], **answers: AnswersOfEach | None) -> Any:
        """What is found of one text, or a list of what is found of each; ``of`` gets the ids of a text and its answers."""
        rows, is_one = rows_of(self._own, text, prepend_bos=changes.get("prepend_bos"))
        # A list of ids is one text.
        is_one = is_one or not (isinstance(text, list) and (isinstance(text[0], str) or hasattr(text[0], "__iter__")))
        if is_one and len(rows) != 1:
            raise TypeError(f"text: expected one text or a list of them, got an array of {len(rows)} rows")
        if is_one:
            return of(rows[0], **answers)
        return [of(row, **{name: _of_text(one, i, len(rows), name) for name, one in answers.items()}) for i, row in enumerate(rows)]

    def _lens(
        self, ids: list[int], position: int, top_k: int, allow_nonfinite: bool, changes: Mapping[str, Any]
    ) -> tuple[Report, dict[str, Floats]]:
        options = {"prompt": ids, "position": _position(position, len(ids)), "top_k": count(top_k, "top_k", 1)}
        return self._study("lens", options, changes, allow_nonfinite=allow_nonfinite)

    def map(self, values: ArrayLike, name: str = "values", axes: Sequence[str] = ("layer", "head"), *, unit: str = "") -> Map:
        """A map of numbers of your own, such as a mean over several texts, which shows and draws as those of the analyses do.

        Args:
            values: One number for each place.
            name: The picture's title.
            axes: What each axis of ``values`` counts.
            unit: What a number is.

        Raises:
            ValueError: if the values have another number of axes.
        """
        array: Floats = np.asarray(values)
        if array.ndim != len(axes) or not array.size:
            raise ValueError(f"values: expected an axis each for {', '.join(axes)}, got an array of shape {array.shape}")
        return self._map(name, array, tuple(axes), unit=unit)

    def head_scores(self, *, length: int | None = None, repeats: int = 4, texts: int = 10, no_bos: bool = False, seed: int = 0, **changes: Unpack[Changes]) -> Scores:
        """Which heads look at the previous token, at earlier copies of a token, or after them (induction heads: Olsson et al. 2022), on
        repeated random tokens.

        Args:
            length: How many tokens are repeated; 25, or what the model's context has room for after its first token.
            repeats: How often.
            texts: How many such texts.
            no_bos: Begins with a random token instead of the model's first token.
            seed: The same seed draws the same texts.
            **changes: Interventions.

        Returns:
            ``previous_token``, ``duplicate_token`` and ``induction``, (L, H) each from 0 to 1, and their standard errors.
        """
        room: int = (self._facts["config"]["n_positions"] - 1) // max(repeats, 1)
        length = min(room, 25) if length is None else length
        of = {"length": count(length, "length", 1), "repeats": count(repeats, "repeats", 2), "rows": count(texts, "texts", 1), "no_bos": bool(no_bos)}
        found = self._own.head_scores(of, count(seed, "seed"), changes_of(self._own, changes))
        return Scores({name: self._map(name, values, unit="mean weight") for name, values in found.items()})

    @overload
    def effects(
        self,
        text: list[str] | list[list[int]],
        answer: AnswersOfEach | None = None,
        against: AnswersOfEach | None = None,
        *,
        mean: bool = False,
        metric: MetricName | MetricFunction | None = None,
        positions: int | Sequence[int] | None = None,
        **changes: Unpack[Changes],
    ) -> list[Effects]: ...

    @overload
    def effects(
        self,
        text: Text,
        answer: Answers | None = None,
        against: Answers | None = None,
        *,
        mean: bool = False,
        metric: MetricName | MetricFunction | None = None,
        positions: int | Sequence[int] | None = None,
        **changes: Unpack[Changes],
    ) -> Effects: ...

    def effects(
        self,
        text: Texts,
        answer: AnswersOfEach | None = None,
        against: AnswersOfEach | None = None,
        *,
        mean: bool = False,
        metric: MetricName | MetricFunction | None = None,
        positions: int | Sequence[int] | None = None,
        **changes: Unpack[Changes],
    ) -> Any:
        """What ablating each head changes in a prediction, through everything that reads it.

        Args:
            text: The text, or a list of texts.
            answer: The token whose log-probability is measured; several only with ``against``. For a list of texts, a list of lists has
                the answers of each.
            against: Measures the logit of ``answer`` less that of this token, or the means of several; as ``answer``, for each text.
            mean: Ablates to the head's mean over the text, not to 0.
            metric: Another metric by its name, or a function of logits (1, T, V) that returns a number and its gradient. ``kl`` is the
                divergence from the run without an ablation.
            positions: Averages a metric of answers over these positions, instead of taking the last.
            **changes: Interventions in every run.

        Returns:
            ``change`` (L, H): below 0, the head helped. ``plain`` is the metric without an ablation.
        """

        def of(ids: list[int], answer: Answers | None, against: Answers | None) -> Effects:
            asked = changes_of(self._own, changes)
            measure = self._measure(answer, against, metric, positions, reference=self._plain(ids, changes) if metric == "kl" else None)
            found = self._own.effects(ids, measure, mean, asked)
            unit = "metric" if metric else "nats"
            return Effects({"change": self._map("effect", found["change"], unit=unit, ids=ids, changes=asked)}, {"plain": _number(found["plain"])})

        return self._each(text, changes, of, answer=answer, against=against)

    def _plain(self, ids: list[int], changes: Mapping[str, Any]) -> Floats:
        """The logits after a text, (1, 1, V)."""
        found: Floats = self._run([ids], changes, logits="last")["logits"][0]
        return np.asarray(found)

    @overload
    def direct(
        self, text: list[str] | list[list[int]], answer: AnswersOfEach, against: AnswersOfEach | None = None, *, raw: bool = False, **changes: Unpack[Changes]
    ) -> list[Effects]: ...

    @overload
    def direct(self, text: Text, answer: Answers, against: Answers | None = None, *, raw: bool = False, **changes: Unpack[Changes]) -> Effects: ...

    def direct(self, text: Texts, answer: AnswersOfEach, against: AnswersOfEach | None = None, *, raw: bool = False, **changes: Unpack[Changes]) -> Any:
        """Direct logit attribution: what each part adds to the logit of ``answer``, or to its difference to that of ``against``.

        Args:
            text: The text, or a list of texts.
            answer: The token, or several, whose logits are averaged. For a list of texts, a list of lists has the answers of each.
            against: The token to compare it with, or several; as ``answer``, for each text.
            raw: Takes the unembedding as it is and counts value biases with their heads. Otherwise the numbers are those of
                TransformerLens' processed view, whichever view the model was loaded in: the unembedding is centered over the vocabulary,
                and what value biases and the layer norm's bias add through W_V counts in ``attention_biases``.
            **changes: Interventions.

        Returns:
            ``heads`` (L, H), ``attention_biases`` and ``mlps`` (L), and as numbers ``embed``, ``pos_embed``, ``final_bias``,
            ``interventions`` (what added vectors and patched streams bring in) and their sum, ``total``; ``view`` says which view they are of.
        """

        def of(ids: list[int], answer: Answers, against: Answers | None) -> Effects:
            asked = changes_of(self._own, changes)
            found = self._own.direct(ids, self._answer(answer, against), raw, asked)
            arrays = {name: np.asarray(value) for name, value in found.items()}
            maps = {name: self._map(name, value, ("layer", "head")[: value.ndim], unit="logit", ids=ids, changes=asked) for name, value in arrays.items() if value.ndim}
            is_processed = not raw or self._facts["processed"]
            view = "processed view: centered unembedding, value biases apart from heads" if is_processed else "raw view: weights as they are in the file"
            return Effects(maps, {name: float(value) for name, value in arrays.items() if not value.ndim}, view)

        return self._each(text, changes, of, answer=answer, against=against)

    def patching(
        self,
        clean: Text,
        corrupt: Text,
        answer: Answers | None = None,
        against: Answers | None = None,
        *,
        metric: MetricName | MetricFunction | None = None,
        positions: int | Sequence[int] | None = None,
        parts: Parts | Sequence[Parts] = "heads",
        progress: Callable[[int, int], None] | None = None,
        **changes: Unpack[Changes],
    ) -> Effects:
        """Activation patching: runs the corrupted text with each part replaced by its value in the clean one (Wang et al. 2022).

        Args:
            clean: The text that the model should get right.
            corrupt: A text of the same length that differs in what matters.
            answer: The token whose log-probability is measured; several only with ``against``.
            against: Measures the logit of ``answer`` less that of this token, or the means of several.
            metric: Another metric by its name, or a function of logits (1, T, V) that returns a number and its gradient; ``loss`` is that of
                the clean text's tokens, ``kl`` the divergence from the clean run.
            positions: Averages a metric of answers over these positions, instead of taking the last.
            parts: Which parts, one at a time: ``heads`` (L, H), ``heads_by_position`` (L, H, T), ``streams`` (L, T), ``attention``
                (L), ``attention_by_position`` (L, T), ``mlps`` (L), ``mlps_by_position`` (L, T); several run together.
            progress: Called with the number of runs done and their total.
            **changes: Interventions in every run.

        Returns:
            A map of the metric for each of ``parts``; ``clean`` and ``corrupt`` are the metric of both texts.
        """
        several = [parts] if isinstance(parts, str) else list(parts)
        pair = self._measured_pair(clean, corrupt, answer, against, metric, positions, changes)
        good, bad, maps = self._own.patch(pair, [str(one) for one in several], progress)
        named: dict[str, Map] = {name: self._map(name, values, AXES[name], unit="metric", ids=pair["clean"], changes=pair["changes"]) for name, values in zip(several, maps)}
        return Effects(named, {"clean": good, "corrupt": bad})

    def attribution(
        self,
        clean: Text,
        corrupt: Text,
        answer: Answers | None = None,
        against: Answers | None = None,
        *,
        metric: MetricName | MetricFunction | None = None,
        positions: int | Sequence[int] | None = None,
        **changes: Unpack[Changes],
    ) -> Effects:
        """Attribution patching: what :meth:`patching` measures, to first order, from two passes and one gradient (Nanda 2023).

        Returns:
            ``heads`` (L, H, T), ``streams``, ``attention`` and ``mlps`` (L, T).
        """
        pair = self._measured_pair(clean, corrupt, answer, against, metric, positions, changes)
        found = self._own.attribution(pair)
        by_position = {"heads": "heads_by_position", "attention": "attention_by_position", "mlps": "mlps_by_position"}
        return Effects({name: self._map(name, values, AXES[by_position.get(name, name)], unit="metric", ids=pair["clean"], changes=pair["changes"]) for name, values in found.items()})

    def _measured_pair(
        self,
        clean: Text,
        corrupt: Text,
        answer: Answers | None,
        against: Answers | None,
        metric: MetricName | MetricFunction | None,
        positions: int | Sequence[int] | None,
        changes: Mapping[str, Any],
    ) -> dict[str, Any]:
        for text, what in ((clean, "clean"), (corrupt, "corrupt")):
            if isinstance(text, list) and text and (isinstance(text[0], str) or hasattr(text[0], "__iter__")):
                raise TypeError(f"{what}: expected one text, got a list of {len(text)}; patch(pairs=...) takes many pairs")
        reference = self._plain(self._ids(clean, changes), changes) if metric == "kl" else None
        return self._pair(clean, corrupt, self._measure(answer, against, metric, positions, reference=reference), changes)

    @overload
    def rollout(self, text: list[str] | list[list[int]], **changes: Unpack[Changes]) -> list[Floats]: ...

    @overload
    def rollout(self, text: Text, **changes: Unpack[Changes]) -> Floats: ...

    def rollout(self, text: Texts, **changes: Unpack[Changes]) -> Any:
        """Attention rollout (Abnar & Zuidema 2020), (L, T, T): how much of each token reaches each position after each layer."""

        def of(ids: list[int]) -> Floats:
            return np.asarray(self._own.rollout(ids, changes_of(self._own, changes)))

        return self._each(text, changes, of)

    def copying_scores(self) -> Map:
        """Whether each head's OV circuit raises the logits of the tokens that it attends to, from -1 to 1 (Elhage et al. 2021). It is
        of the processed view, with layer norms folded into the weights."""
        return self._map("copying", self._own.copying_scores(), unit="share")

    def composition(self, kind: Literal["q", "k", "v"]) -> Floats:
        """How much each head's queries, keys or values read what each earlier head writes (Elhage et al. 2021): the layer and the head
        that write, then those that read, (L, H, L, H). It is of the processed view, with layer norms folded into the weights."""
        return np.asarray(self._own.composition(kind))

    def circuit(self, head: HeadName, kind: Literal["qk", "ov"], tokens: Text) -> Floats:
        """Rows (tokens, V) of a head's circuit: ``qk``, the scores of every key's token for these queries' tokens; ``ov``, what attending
        to these tokens adds to every logit.

        Args:
            head: ``"layer.head"`` or ``(layer, head)``.
            kind: ``qk`` or ``ov``.
            tokens: A text or ids.
        """
        head = head_name(head)
        layer, dot, number = head.partition(".")
        if not (dot and layer.isdecimal() and number.isdecimal()):
            raise ValueError(f"head {head!r}: expected LAYER.HEAD, such as 5.1")
        if kind not in ("qk", "ov"):
            raise ValueError(f"kind {kind!r}: expected qk or ov")
        return np.asarray(self._own.circuit(int(layer), int(number), kind == "qk", ids_of(self._own, tokens, "tokens", prepend_bos=False)))

    def score(self, texts: Texts, *, prepend_bos: bool | None = None) -> list[Floats]:
        """How surprising each token of each text is but the first, given those before it, in nats. With ``prepend_bos``, the first token
        is the model's own, and every token of a string has a number."""
        refuse_hooks(self._own)
        return [np.asarray(nats) for nats in self._own.surprises(rows_of(self._own, texts, prepend_bos=prepend_bos)[0])]


def _position(position: int, t: int) -> int:
    if isinstance(position, bool) or not isinstance(position, (int, np.integer)):
        raise TypeError(f"position: expected one, from {-t} to {t - 1}, got {position!r}")
    if not -t <= position < t:
        raise ValueError(f"position {position}: the text has positions 0 to {t - 1}")
    return position % t


def _of_text(answers: Any, place: int, texts: int, what: str) -> Any:
    """The answers of one of several texts: of a list of lists, its own list."""
    several: list[Any] = listed(answers)
    if not several or not any(listed(one) for one in several):
        refuse_one_each(answers, texts, what, "give a list of lists, [[..], [..]]")
        return answers
    if len(several) != texts:
        raise ValueError(f"{what}: has a list for each of {len(several)} texts, and there are {texts}")
    return several[place]


def _number(array: _native.Array) -> float:
    return float(np.asarray(array))
