"""Circuits: which edges and parts a task needs, and what the weights of heads do."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args

import numpy as np

from . import _native
from ._base import Base, Progress, Report
from ._inputs import Changes, all_answers, edge_text, head_name, ids_of, is_several, listed
from ._metrics import NativeMetric, native_function, positions_of, reads_pairs
from ._numbers import count, maybe
from ._results import Picture
from ._types import Answers, Floats, HeadName, MetricFunction, PairMetricName, Text

if sys.version_info >= (3, 11):
    from typing import Unpack
elif TYPE_CHECKING:
    from typing_extensions import Unpack

Pairs = Union[str, "os.PathLike[str]", Sequence[Mapping[str, Any]]]
"""A file of pairs as ``gpt2 pairs`` writes it, or mappings with the names of its lines: ``clean`` and ``corrupted`` are texts or ids,
``correct`` and ``incorrect`` a token, its id, or several. A mapping may say ``corrupt``, ``answer`` and ``against`` instead.
:meth:`Model.pairs` gives some."""
Paths = Union[str, tuple[HeadName, str], Sequence[Union[str, tuple[HeadName, str]]]]
"""Senders and readers, ``"0.3->1.2.k,1.0.k"``, a pair of them, ``("0.3", "1.2.k,1.0.k")``, or several such."""
Task = Literal["ioi", "greater-than", "induction", "pronouns"]
Gradients = Literal["clean", "corrupted", "integrated"]
Integral = Literal["inputs", "activations"]
Freeze = Literal["all", "heads", "nothing"]
_METRICS: tuple[str, ...] = get_args(PairMetricName)


@dataclass(frozen=True, repr=False)
class Circuit:
    """Some of a model's edges. As an intervention, ``circuit=``, the model runs with these alone."""

    edges: Sequence[tuple[str, str]]
    """Pairs of a writer (``"embed"``, ``"0.1"``, ``"0.mlp"``) and a reader (``"2.3.q"``, ``"2.mlp"``, ``"logits"``)."""
    faithfulness: float | None = None
    """The share of the task's metric that it keeps, if it was measured."""
    scores: Sequence[float] = ()
    """The score of each edge, if they have some."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The options that it was found with."""
    provenance: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The facts that it depends on: model, dtype, device, texts, interventions."""

    @classmethod
    def of(cls, report: Report) -> Circuit:
        """The circuit in a report of :meth:`Model.discover`."""
        found = report["circuit"]
        return cls._of(found["edges"], found["faithfulness"], report["settings"], report["provenance"])

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Circuit:
        """Reads a file that :meth:`save` or ``gpt2 discover --out`` wrote.

        Raises:
            ValueError: if it holds no circuit.
        """
        text = Path(path).read_text(encoding="utf-8")
        try:
            saved = json.loads(text)
            return cls._of(saved["edges"], saved.get("faithfulness"), saved.get("settings") or {}, saved.get("provenance") or {})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{os.fspath(path)}: is not a circuit; Circuit.save and gpt2 discover --out write one") from error

    @classmethod
    def _of(cls, edges: list[dict[str, Any]], faithfulness: float | None, settings: Any, provenance: Any) -> Circuit:
        scores = [float(edge["score"]) for edge in edges if "score" in edge]
        ends = [(str(edge["from"]), str(edge["to"])) for edge in edges]
        return cls(ends, faithfulness, scores if len(scores) == len(ends) else [], dict(settings), dict(provenance))

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Writes the file that ``gpt2 discover --out`` writes, without the folders of this machine.

        Raises:
            FileExistsError: if there is a file already, unless ``overwrite`` is true.
            ValueError: for the name of a picture, which :meth:`Model.draw` makes.
        """
        if Path(path).suffix.lower() in (".svg", ".pdf", ".png"):
            raise ValueError(f"{os.fspath(path)}: a circuit is saved as JSON; model.draw(circuit).save(..) draws it")
        edges: list[dict[str, Any]] = [{"from": writer, "to": reader} for writer, reader in self.edges]
        for edge, score in zip(edges, self.scores):
            edge["score"] = score
        saved = {"edges": edges, "faithfulness": self.faithfulness, "provenance": _shared(self.provenance), "settings": dict(self.settings)}
        text = json.dumps(saved, indent=2, ensure_ascii=False) + "\n"
        _native.write_file(os.fspath(path), text.encode(), overwrite)

    def __len__(self) -> int:
        return len(self.edges)

    def __repr__(self) -> str:
        kept = "" if self.faithfulness is None else f", faithfulness {self.faithfulness:+.3f}"
        return f"Circuit({len(self.edges)} edges{kept})"


def _shared(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """A provenance without the folders of this machine."""
    shared = {name: value for name, value in provenance.items() if name != "folder"}
    if "model" in shared:
        shared["model"] = _last_part(str(shared["model"]))
    if "adapters" in shared:
        shared["adapters"] = [{**one, "name": _last_part(str(one["name"]))} for one in shared["adapters"]]
    if "interventions" in shared:
        shared["interventions"] = [" ".join(_last_part(word) if "/" in word else word for word in str(text).split(" ")) for text in shared["interventions"]]
    return shared


def _last_part(name: str) -> str:
    """A name for others to see: of a path on this machine, the last part. A name of the Hub is no path."""
    return Path(name).name if os.path.isabs(name) or os.path.exists(name) else name


class EdgeScores(Mapping["tuple[str, str]", float]):
    """A score for each edge, by its writer and its reader: ``scores["0.3", "0.mlp"]``. Above 0, an edge helps the right answers."""

    def __init__(self, report: Report, scores: Floats) -> None:
        self.report = report
        """What was measured, and how."""
        self.writers: list[str] = report["writers"]
        """The embeddings (``embed``), then each layer's heads (``0.1``) and its MLP (``0.mlp``)."""
        self.readers: list[str] = report["readers"]
        """Each layer's queries (``0.1.q``), keys and values, and its MLP, then ``logits``."""
        self.array = scores
        """(readers, writers); 0 where there is no edge."""
        self._writer_places = {name: place for place, name in enumerate(self.writers)}
        self._reader_places = {name: place for place, name in enumerate(self.readers)}
        self._before: list[int] = report["writers_before"]

    def __getitem__(self, edge: tuple[HeadName, str]) -> float:
        writer, reader = head_name(edge[0], "writer"), edge[1]
        column, row = self._writer_places.get(writer), self._reader_places.get(reader)
        if column is None or row is None:
            raise KeyError(f"there is no edge {writer}->{reader}; writers are such as 0.1, 0.mlp and embed, readers 2.3.q, 2.mlp and logits")
        if column >= self._before[row]:
            raise KeyError(f"there is no edge {writer}->{reader}: {writer} does not come before {reader}")
        return float(self.array[row, column])

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((writer, reader) for reader, before in zip(self.readers, self._before) for writer in self.writers[:before])

    def __len__(self) -> int:
        return sum(self._before)

    def top(self, count: int = 15) -> list[tuple[tuple[str, str], float]]:
        """The edges with the scores farthest from 0, largest first."""
        return sorted(self.items(), key=lambda of: -abs(of[1]))[:count]

    def between_heads(self) -> Floats:
        """The scores of edges between heads, (3, L, H, L, H): for queries, keys and values, the sender's layer and head, then the
        receiver's. 0 where the receiver does not come later."""
        layers = sum(name.endswith(".mlp") for name in self.writers)
        heads = (len(self.writers) - 1) // layers - 1
        of_layers = self.array[:-1, 1:].reshape(layers, 3 * heads + 1, layers, heads + 1)
        found = of_layers[:, : 3 * heads, :, :heads].reshape(layers, 3, heads, layers, heads)
        return np.ascontiguousarray(found.transpose(1, 3, 4, 0, 2))

    def __repr__(self) -> str:
        top = ", ".join(f"{writer}->{reader} {score:+.3g}" for (writer, reader), score in self.top(3))
        return f"EdgeScores({len(self)} edges; {top}, ...)"


class Circuits(Base):
    """Which edges and parts of a :class:`Model` a task needs, and what its weights do. Each method is a command of the same name."""

    def pairs(self, task: Task = "induction", count: int = 20, *, seed: int = 0) -> list[dict[str, Any]]:
        """Pairs of texts for a task that papers on circuits use, in the words of the model's vocabulary.

        Args:
            task: ``ioi`` (Wang et al. 2022), ``greater-than`` (Hanna et al. 2023), ``induction`` (Olsson et al. 2022; for any
                vocabulary) or ``pronouns`` (Mathwin et al. 2023).
            count: How many pairs.
            seed: The same seed gives the same pairs.

        Returns:
            For each pair ``clean``, ``corrupted``, ``correct`` and ``incorrect``.

        Raises:
            ValueError: if the vocabulary breaks up the words of the task.
        """
        found: Any = self._study("pairs", {"task": task, "count": _number(count, "count")}, {}, seed=seed)[0]
        return list(found)

    def discover(
        self,
        clean: Text | None = None,
        corrupt: Text | None = None,
        answer: Answers | None = None,
        against: Answers | None = None,
        *,
        pairs: Pairs | None = None,
        metric: PairMetricName | MetricFunction | None = None,
        positions: int | Sequence[int] = (),
        steps: int = 5,
        integrate: Integral = "inputs",
        qk_fix: bool = False,
        choose: Literal["greedy", "rank"] = "greedy",
        replace: Literal["corrupted", "mean", "zero"] = "corrupted",
        edges: int | None = None,
        faithfulness: float = 0.9,
        random: int = 3,
        minimal: bool = False,
        seed: int = 0,
        allow_nonfinite: bool = False,
        progress: Progress | None = None,
        **changes: Unpack[Changes],
    ) -> Report:
        """The edges that a task needs, and how faithful the circuit is that they make (EAP-IG: Hanna et al. 2024).

        Args:
            clean: The text that the model should get right.
            corrupt: A text of as many tokens that differs in what matters.
            answer: The token that should follow the clean text, or several.
            against: The wrong ones. Without them or a metric, the log-probability of ``answer`` is measured.
            pairs: Many pairs instead, or a file of them.
            metric: Another metric by its name, or a function of logits (1, T, V) that returns a number and its gradient. Over pairs in
                memory, a second parameter gets the one that it measures.
            positions: Averages the metric of the answers over these positions, instead of taking the last.
            steps: Takes gradients over so many runs between the texts; with 0, those of the clean run alone (EAP).
            integrate: What leads from one text to the other: the ``inputs``, or the ``activations`` of each layer.
            qk_fix: Computes attention again for each edge into queries and keys (AtP*: Kramár et al. 2024).
            choose: ``greedy`` from the logits on, each time the best edge into the circuit; ``rank`` the best of all.
            replace: What other edges carry: the ``corrupted`` run's values, their ``mean``, or ``zero``.
            edges: How many edges to choose; without a number, as many as reach ``faithfulness``.
            faithfulness: The share of the metric to look for.
            random: How many circuits of random edges to compare with.
            minimal: Also runs the circuit without each of its heads and MLPs.
            seed: That of the random circuits.
            allow_nonfinite: Goes on with NaN and infinity.
            progress: Called with the steps' name, how many are done, and their total.
            **changes: Interventions in every run.

        Returns:
            The report of the command, with its ``curve`` and ``circuit``. ``Circuit.of(report)`` is the circuit as an intervention.
        """
        pairs = _listed(pairs)
        options = {
            **self._measured(clean, corrupt, answer, against, pairs, metric, positions, changes),
            "steps": count(steps, "steps"),
            "integrate": integrate,
            "qk_fix": bool(qk_fix),
            "choose": choose,
            "replace": replace,
            "edges": maybe(edges, "edges", 1),
            "faithfulness": float(faithfulness),
            "random": count(random, "random"),
            "minimal": bool(minimal),
        }
        return self._study("discover", options, changes, seed=seed, allow_nonfinite=allow_nonfinite, progress=progress, metric=_function(metric, pairs))[0]

    def draw(self, circuit: Circuit, *, title: str | None = None) -> Picture:
        """A circuit as a picture: a row for each layer, a column for each head, MLPs beside them, and its edges, as thick as their
        scores are large.

        Args:
            circuit: That of :meth:`Circuit.of`, of :meth:`Circuit.load`, or of edges of your own.
            title: Stands above it; without one, the model and how many edges there are.

        Returns:
            What a notebook shows, and ``save`` writes as ``.svg``, ``.pdf`` or ``.png``.

        Raises:
            ValueError: if the model does not have one of the edges.
        """
        if not isinstance(circuit, Circuit):
            raise TypeError(f"circuit: expected a Circuit, got {type(circuit).__name__}; Circuit.of(report) is that of a report of discover")
        edges = [edge_text(edge) for edge in circuit.edges]
        if circuit.faithfulness is not None and not math.isfinite(circuit.faithfulness):
            raise ValueError(f"circuit: its faithfulness is {circuit.faithfulness}, expected a finite number or None")
        many = f"{len(edges)} edge{'' if len(edges) == 1 else 's'}"
        heading = f"{_last_part(self.name)}: a circuit of {many}" if title is None else title
        found = {"faithfulness": circuit.faithfulness, "provenance": _shared(circuit.provenance), "settings": dict(circuit.settings)}
        scores = list(circuit.scores) if circuit.scores else None

        def draw(path: str) -> bytes:
            return self._own.circuit_picture(path, heading, edges, scores, json.dumps(found))

        draw("circuit.svg")  # so that a wrong edge is refused here
        return Picture(heading, draw)

    def edge_scores(
        self,
        clean: Text | None = None,
        corrupt: Text | None = None,
        answer: Answers | None = None,
        against: Answers | None = None,
        *,
        pairs: Pairs | None = None,
        metric: PairMetricName | MetricFunction | None = None,
        positions: int | Sequence[int] = (),
        gradients: Gradients = "integrated",
        steps: int = 5,
        integrate: Integral = "inputs",
        qk_fix: bool = False,
        allow_nonfinite: bool = False,
        progress: Progress | None = None,
        **changes: Unpack[Changes],
    ) -> EdgeScores:
        """What each edge carries, to first order, from all writers (embeddings, heads, MLPs) to all readers (queries, keys, values, MLPs,
        logits): the change of what the writer adds, clean less corrupted, times the gradient at what the reader reads.

        Args:
            clean: The text that the model should get right.
            corrupt: A text of as many tokens that differs in what matters.
            answer: The token that should follow the clean text, or several.
            against: The wrong ones. Without them or a metric, the log-probability of ``answer`` is measured.
            pairs: Many pairs instead, or a file of them: scores are means over them.
            metric: Another metric by its name, or a function of logits (1, T, V) that returns a number and its gradient. Over pairs in
                memory, a second parameter gets the one that it measures.
            positions: Averages the metric of the answers over these positions, instead of taking the last.
            gradients: The runs in which gradients are taken: the ``clean`` one (EAP: Syed et al. 2023), the ``corrupted`` one (as in
                attribution patching: Nanda 2023), or ``integrated`` over runs between them (EAP-IG: Hanna et al. 2024), as
                :meth:`discover` takes them.
            steps: The number of runs to integrate over.
            integrate: What leads from one text to the other in them: the ``inputs``, or the ``activations`` of each layer.
            qk_fix: Computes attention again for each edge into queries and keys (AtP*: Kramár et al. 2024).
            allow_nonfinite: Returns NaN and infinity.
            progress: Called with the steps' name, how many are done, and their total.
            **changes: Interventions in every run.

        Returns:
            The scores by writer and reader, and as an array.
        """
        pairs = _listed(pairs)
        options = {
            **self._measured(clean, corrupt, answer, against, pairs, metric, positions, changes),
            "gradients": gradients,
            "steps": count(steps, "steps", 1),
            "integrate": integrate,
            "qk_fix": bool(qk_fix),
        }
        report, arrays = self._study("edge-scores", options, changes, allow_nonfinite=allow_nonfinite, progress=progress, metric=_function(metric, pairs))
        return EdgeScores(report, arrays["scores"])

    def edges(
        self,
        clean: Text,
        corrupt: Text,
        answer: Answers | None = None,
        against: Answers | None = None,
        *,
        metric: PairMetricName | MetricFunction | None = None,
        positions: int | Sequence[int] = (),
        gradients: Gradients = "integrated",
        steps: int = 5,
        **changes: Unpack[Changes],
    ) -> Floats:
        """What each edge between two heads carries, to first order: the part of :meth:`edge_scores` between heads.

        Returns:
            (3, L, H, L, H): for queries, keys and values, the sender's layer and head, then the receiver's.
        """
        return self.edge_scores(clean, corrupt, answer, against, metric=metric, positions=positions, gradients=gradients, steps=steps, **changes).between_heads()

    def patch(
        self,
        clean: Text | None = None,
        corrupt: Text | None = None,
        answer: Answers | None = None,
        against: Answers | None = None,
        *,
        pairs: Pairs | None = None,
        metric: PairMetricName | MetricFunction | None = None,
        positions: int | Sequence[int] = (),
        by_position: bool = False,
        path: Paths = (),
        freeze: Freeze = "all",
        allow_nonfinite: bool = False,
        progress: Progress | None = None,
        **changes: Unpack[Changes],
    ) -> Report:
        """Which parts carry the difference between two texts, or between those of many pairs: exact (activation patching) and
        estimated (attribution patching), as shares of the difference. :meth:`patching` gives the metrics themselves.

        Args:
            clean: The text that the model should get right.
            corrupt: A text of as many tokens that differs in what matters.
            answer: The token that should follow the clean text, or several.
            against: The wrong ones. Without them or a metric, the log-probability of ``answer`` is measured.
            pairs: Many pairs instead, or a file of them.
            metric: Another metric by its name, or a function of logits (1, T, V) that returns a number and its gradient. Over pairs in
                memory, a second parameter gets the one that it measures.
            positions: Averages the metric of the answers over these positions, instead of taking the last.
            by_position: Also patches each head at each position; for a single pair.
            path: Also patches paths: see :meth:`path_patching`.
            freeze: What stays as in the clean run between their ends.
            allow_nonfinite: Returns NaN and infinity.
            progress: Called with the steps' name, how many are done, and their total.
            **changes: Interventions in every run.

        Returns:
            The report of the command: ``heads``, ``layers``, of one pair also ``streams`` and others by position.
        """
        pairs = _listed(pairs)
        options = {
            **self._measured(clean, corrupt, answer, against, pairs, metric, positions, changes),
            "by_position": bool(by_position),
            "path": _paths(path),
            "freeze": freeze,
        }
        return self._study("patch", options, changes, allow_nonfinite=allow_nonfinite, progress=progress, metric=_function(metric, pairs))[0]

    def path_patching(
        self,
        clean: Text | None = None,
        corrupt: Text | None = None,
        answer: Answers | None = None,
        against: Answers | None = None,
        *,
        path: Paths,
        pairs: Pairs | None = None,
        metric: PairMetricName | MetricFunction | None = None,
        positions: int | Sequence[int] = (),
        freeze: Freeze = "all",
        allow_nonfinite: bool = False,
        progress: Progress | None = None,
        **changes: Unpack[Changes],
    ) -> Report:
        """What senders tell readers: the share of the difference that the clean run loses when readers hear the corrupted senders.

        Args:
            clean: The text that the model should get right.
            corrupt: A text of as many tokens that differs in what matters.
            answer: The token that should follow the clean text, or several.
            against: The wrong ones. Without them or a metric, the log-probability of ``answer`` is measured.
            path: Senders and readers, as text or as pairs.
            pairs: Many pairs instead, or a file of them.
            metric: Another metric by its name, or a function of logits (1, T, V) that returns a number and its gradient. Over pairs in
                memory, a second parameter gets the one that it measures.
            positions: Averages the metric of the answers over these positions, instead of taking the last.
            freeze: What stays as in the clean run between them: ``all`` (Goldowsky-Dill et al. 2023), ``heads`` (Wang et al. 2022) or
                ``nothing``.
            allow_nonfinite: Returns shares of metrics that are NaN or infinite.
            progress: Called with the steps' name, how many are done, and their total.
            **changes: Interventions in every run.

        Returns:
            ``paths``, each with ``path`` and ``lost``: a mean and its standard error over the pairs.
        """
        pairs = _listed(pairs)
        options = {**self._measured(clean, corrupt, answer, against, pairs, metric, positions, changes), "path": _paths(path), "freeze": freeze}
        return self._study("path-patching", options, changes, allow_nonfinite=allow_nonfinite, progress=progress, metric=_function(metric, pairs))[0]

    def heads(
        self,
        *,
        length: int = 25,
        repeats: int = 4,
        batch: int = 10,
        no_bos: bool = False,
        seed: int = 0,
        allow_nonfinite: bool = False,
        progress: Progress | None = None,
        **changes: Unpack[Changes],
    ) -> Report:
        """The kinds of heads: their scores on random tokens that come several times (Olsson et al. 2022), and how much they copy.
        :meth:`head_scores` gives the scores as arrays.

        Args:
            length: How many random tokens a text repeats.
            repeats: How often it has them.
            batch: How many texts.
            no_bos: Begins with a random token instead of the model's first token.
            seed: The same seed draws the same texts.
            allow_nonfinite: Returns NaN and infinity.
            progress: Called with the steps' name, how many are done, and their total.
            **changes: Interventions.

        Returns:
            The report of the command: ``heads``, layer by layer, and ``chance``, the scores of uniform attention.
        """
        options = {
            "length": count(length, "length", 1),
            "repeats": count(repeats, "repeats", 2),
            "batch": count(batch, "batch", 1),
            "no_bos": bool(no_bos),
        }
        return self._study("heads", options, changes, seed=seed, allow_nonfinite=allow_nonfinite, progress=progress)[0]

    def circuits(
        self,
        head: HeadName | None = None,
        *,
        token: Answers = (),
        composition: str | Sequence[str] = (),
        top: int = 10,
        seen_only: bool = False,
        progress: Progress | None = None,
    ) -> Report:
        """What the weights of heads do by token, and how heads feed one another (Elhage et al. 2021).

        Args:
            head: One head, ``"3.0"`` or ``(3, 0)``; without it, the copying scores and compositions of all.
            token: Of one head, tokens whose rows to list instead of the largest entries.
            composition: Of all heads, only ``"q"``, ``"k"`` or ``"v"``.
            top: How many entries to list of one head.
            seen_only: Of one head, leave out tokens that training hardly saw, as the command does on a terminal.
            progress: Called with the steps' name, how many are done, and their total.

        Returns:
            The report of the command: ``heads`` and ``compositions``, or of one head ``qk``, ``ov``, ``eigenvalues`` and singular
            directions.
        """
        options = {
            "head": None if head is None else head_name(head),
            "token": [self._spelled(one, "token") for one in all_answers(token)],
            "composition": _several(composition, "composition"),
            "top": count(top, "top", 1),
            "seen_only": seen_only,
        }
        return self._study("circuits", options, {}, progress=progress)[0]

    def _measured(
        self,
        clean: Text | None,
        corrupt: Text | None,
        answer: Answers | None,
        against: Answers | None,
        pairs: Pairs | None,
        metric: PairMetricName | MetricFunction | None,
        positions: int | Sequence[int],
        changes: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Pairs and what is measured of them, for the engine."""
        is_function = callable(metric)
        if metric is not None and not is_function and metric not in _METRICS:
            raise ValueError(f"metric {metric!r}: expected {', '.join(_METRICS)} or a function of logits")
        by_answers = not is_function and metric not in ("loss", "kl")
        several = [] if isinstance(positions, Sequence) and not positions else positions_of(positions)
        return {
            "pairs": self._pairs(clean, corrupt, answer, against, pairs, by_answers, changes.get("prepend_bos")),
            "metric": None if is_function else metric,
            "positions": several,
        }

    def _pairs(
        self,
        clean: Text | None,
        corrupt: Text | None,
        answer: Answers | None,
        against: Answers | None,
        pairs: Pairs | None,
        by_answers: bool,
        prepend_bos: bool | None,
    ) -> str | dict[str, Any] | list[dict[str, Any]]:
        """Pairs for the engine: the only one, a file, or several."""
        if pairs is None:
            if clean is None or corrupt is None or (by_answers and answer is None):
                raise TypeError("give clean, corrupt and answer, or pairs=")
            return self._one_pair({"clean": clean, "corrupted": corrupt, "correct": answer, "incorrect": against}, "", by_answers, prepend_bos)
        if any(one is not None for one in (clean, corrupt, answer, against)):
            raise TypeError("give clean, corrupt, answer and against, or pairs, not both")
        if isinstance(pairs, (str, os.PathLike)):
            if prepend_bos is not None and prepend_bos != self._facts["prepend_bos"]:
                raise TypeError("prepend_bos: a file of pairs is read as the model was loaded; give it to Model.load, or pairs in memory")
            return os.fspath(pairs)
        return [self._one_pair(pair, f"pair {i}, ", by_answers, prepend_bos) for i, pair in enumerate(pairs)]

    def _one_pair(self, pair: Any, where: str, by_answers: bool, prepend_bos: bool | None) -> dict[str, Any]:
        if not isinstance(pair, Mapping):
            raise TypeError(f"{where}expected a mapping with clean, corrupted, correct and incorrect, got {pair!r}")
        given: dict[str, Any] = dict(pair)  # pyright: ignore[reportUnknownArgumentType]
        for other, name in (("corrupt", "corrupted"), ("answer", "correct"), ("against", "incorrect")):
            if given.get(other) is not None:
                if given.get(name) is not None:
                    raise ValueError(f"{where}{other} is another word for {name}; give one of them")
                given[name] = given[other]
        needed = ("clean", "corrupted", "correct") if by_answers else ("clean", "corrupted")
        missing = [name for name in needed if given.get(name) is None]
        if missing:
            raise ValueError(f"{where}there is no {missing[0]!r}")
        found: dict[str, Any] = {}
        for name in ("clean", "corrupted"):
            text = given[name]
            as_text = isinstance(text, str) and prepend_bos is None
            found[name] = text if as_text else ids_of(self._own, text, f"{where}{name}", prepend_bos=prepend_bos)
        for name in ("correct", "incorrect"):
            answers = given.get(name)
            if answers is not None:
                several = [self._spelled(one, f"{where}{name}") for one in all_answers(answers)]
                if not several:
                    raise ValueError(f"{where}{name} is empty: give at least one answer")
                found[name] = several if is_several(answers) else several[0]
        return found

    def _spelled(self, token: Any, what: str) -> str | int:
        """A token's text as it is, which the engine looks up, or its id."""
        return token if isinstance(token, str) else self._token(token, what)


def _listed(pairs: Pairs | None) -> Pairs | None:
    """Pairs in memory as a list: they are read twice."""
    return pairs if pairs is None or isinstance(pairs, (str, os.PathLike)) else list(pairs)


def _function(metric: PairMetricName | MetricFunction | None, pairs: Pairs | None) -> NativeMetric | None:
    """A metric of one's own for the native half."""
    if not callable(metric):
        return None
    if not reads_pairs(metric):
        return native_function(metric)
    if not isinstance(pairs, list):
        raise TypeError("metric: a second parameter is for the pair that is measured; give pairs, as a list")
    return native_function(metric, pairs)


def _paths(path: Any) -> list[str]:
    """Senders and readers as text: ``("0.3", "1.2.k")`` is one sender and one reader."""
    is_pair = isinstance(path, tuple) and len(listed(path)) == 2 and isinstance(path[1], str) and "->" not in path[1]
    several: list[Any] = [path] if isinstance(path, str) or is_pair else list(path)  # pyright: ignore[reportUnknownArgumentType]
    return [one if isinstance(one, str) else edge_text(one, "path") for one in several]


def _several(texts: str | Sequence[str], what: str) -> list[str]:
    found: list[Any] = [texts] if isinstance(texts, str) else list(texts)
    for one in found:
        if not isinstance(one, str):
            raise TypeError(f"{what}: expected text, got {one!r}")
    return found


def _number(value: Any, what: str) -> int:
    """A number of at least 1, for a method with an argument ``count``."""
    return count(value, what, 1)
