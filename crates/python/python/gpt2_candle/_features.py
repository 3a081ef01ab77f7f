"""Features of dictionaries in a model, and the values that dictionaries learn from."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from . import _native
from ._base import Base, Progress, Report
from ._dictionary import Dictionary
from ._inputs import Changes, changes_of, ids_of
from ._notes import warn
from ._numbers import count, maybe
from ._store import Store
from ._types import Floats, Paths, Text

if sys.version_info >= (3, 11):
    from typing import Unpack
elif TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class TextFeatures:
    """The features that fire in a text of T tokens."""

    report: Report
    """The facts, as ``gpt2 features --json`` prints them: ``quality``, the strongest features of each of ``tokens``, and where they
    were asked for ``details``, ``effects`` and ``attention``."""
    features: Floats
    """The activations of all features, (T, d_sae)."""
    target: Floats
    """The value that the dictionary should rebuild, (T, d_out)."""
    rebuilt: Floats
    """Its reconstruction, (T, d_out)."""

    def __repr__(self) -> str:
        quality = self.report["quality"]
        explained = quality["explained_variance"]
        explains = "" if explained is None else f", explained variance {explained:.3f}"
        return f"TextFeatures({len(self.features)} tokens, L0 {quality['l0']:.1f}{explains})"


@dataclass(frozen=True)
class AttributionGraph:
    """What the tokens of a prompt, features and errors add to one another and to the next token's logits."""

    report: Report
    """The facts, as ``gpt2 graph --json`` prints them: ``replacement_score``, ``completeness_score``, and the pruned ``graph``."""
    adjacency_matrix: Floats
    """What each node adds to each, (nodes, nodes), a row for each target and a column for each source, before anything is pruned. The
    nodes are the active features, errors by layer and position, tokens, and logits, in this order, as in circuit-tracer's ``Graph``."""
    active_features: NDArray[np.int64]
    """Layer, position and number of each feature that fires, (features, 3)."""
    activation_values: Floats
    """Their activations, (features)."""
    input_tokens: NDArray[np.int64]
    """The prompt's tokens, (T)."""
    logit_tokens: NDArray[np.int64]
    """The next tokens whose logits are nodes, (logits)."""
    logit_probabilities: Floats
    """Their probabilities, (logits)."""
    _inputs: tuple[list[tuple[str, Path]], list[Path]] | None = field(default=None, repr=False, compare=False)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Writes the pruned graph as circuit-tracer does, for its page or Neuronpedia.

        Raises:
            FileExistsError: if there is a file already, unless ``overwrite`` is true.
            ValueError: if it is a file that the graph was made of, or has the name of a page.
        """
        if Path(path).suffix.lower() in (".html", ".htm"):
            raise ValueError(f"{os.fspath(path)}: save writes JSON; save_page writes the page")
        graph = dict(self.report["graph"])
        graph["metadata"] = {**graph["metadata"], "slug": Path(path).stem}  # the page finds a graph by its file's name
        text = json.dumps(graph, indent=2, ensure_ascii=False) + "\n"
        _native.write_file(os.fspath(path), text.encode(), overwrite, self._inputs)

    def save_page(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Writes the pruned graph as a page for a browser, in one file that needs no network: nodes, their texts and edges, groups of
        nodes, and commands that check an edge.

        Raises:
            FileExistsError: if there is a file already, unless ``overwrite`` is true.
            ValueError: if it is a file that the graph was made of.
        """
        page = bytes(_native.graph_page(json.dumps(self.report)))
        _native.write_file(os.fspath(path), page, overwrite, self._inputs)

    def __repr__(self) -> str:
        graph, scores = self.report["graph"], self.report
        return (
            f"AttributionGraph({len(graph['nodes'])} of {scores['nodes']} nodes, {len(graph['links'])} edges, "
            f"replacement {scores['replacement_score']:.3f}, completeness {scores['completeness_score']:.3f})"
        )


class Features(Base):
    """What the features of a dictionary do in a model. Sparse autoencoders: Bricken et al. 2023; transcoders: Dunefsky et al. 2024."""

    def features(
        self,
        text: Text,
        sae: Dictionary | str | os.PathLike[str] | None = None,
        /,
        *,
        top_k: int = 5,
        feature: int | Sequence[int] = (),
        target: str | int | None = None,
        against: str | int | None = None,
        attention: str | None = None,
        explanations: Paths = (),
        allow_nonfinite: bool = False,
        **changes: Unpack[Changes],
    ) -> TextFeatures:
        """Which features fire in a text, and what they do.

        Args:
            text: The text.
            sae: The dictionary, or its name, which is also taken as ``dictionary=``: see :meth:`Dictionary.load`. It is also that of ``ablate_feature``,
                ``scale_feature`` and ``set_feature``.
            top_k: How many features the report has for each token, or how many effects or pairs.
            feature: Features to follow: where they fire, and which tokens they make likelier and less likely.
            target: A token: the report has the features with the largest effects on its logit at the end, to first order (Marks et al.
                2024).
            against: Measures the logit of ``target`` less that of this token.
            attention: ``"L.H/QUERY:KEY"``: splits a head's score of a position for another by pairs of features.
            explanations: Files with published explanations, JSON as Neuronpedia exports them: the report has those of its features.
            allow_nonfinite: Returns NaN and infinity instead of raising.
            **changes: Interventions, but for ``circuit``.

        Raises:
            ValueError: if the dictionary is of another model, or an option does not fit it or the text.
        """
        report, arrays = self._study(
            "features",
            {
                "prompt": self._ids(text, changes),
                "top_k": count(top_k, "top_k", 1),
                "feature": _features_of(feature),
                "target": None if target is None else [self._token(target, "target")],
                "against": None if against is None else [self._token(against, "against")],
                "attention": attention,
                "explanations": _paths(explanations),
            },
            _with(sae, changes, "features"),
            allow_nonfinite=allow_nonfinite,
        )
        return TextFeatures(report, arrays["features"], arrays["target"], arrays["rebuilt"])

    def features_in_store(
        self,
        store: Store | str | os.PathLike[str],
        dictionary: Dictionary | str | os.PathLike[str],
        *,
        top_k: int = 5,
        feature: int | Sequence[int] = (),
        details: bool = False,
        pages: str | os.PathLike[str] | None = None,
        neuronpedia: str | os.PathLike[str] | None = None,
        neuronpedia_id: str | None = None,
        explanations: Paths = (),
        overwrite: bool = False,
        allow_nonfinite: bool = False,
        progress: Progress | None = None,
    ) -> Report:
        """How often features fire over a corpus, and where most.

        Args:
            store: What :meth:`record` wrote, with the value that the dictionary reads.
            dictionary: The dictionary, or its name.
            top_k: How many features, the most frequent first; of each of ``feature``, how many places.
            feature: Features to follow: the places where they fire most, each with the text around it, and the tokens that they promote.
            details: Tells of every feature, or of each of ``feature``, how large its activations are (``quantiles``, ``histogram``), the
                features whose directions are most like its own (``related``), and the heads that read most of it (``read_by``).
            pages: A folder to write, with a page for each of these features; ``index.html`` searches them.
            neuronpedia: A new folder to write, with every feature that fires, or each of ``feature``, as requests that upload them to
                Neuronpedia. Nobody has tried an upload.
            neuronpedia_id: The model's and the source's name on Neuronpedia, such as ``"gpt2-small/6-res-jb"``.
            explanations: Files with published explanations, JSON as Neuronpedia exports them, which the report and the pages show.
            overwrite: Replaces pages that are there.
            allow_nonfinite: Returns NaN and infinity instead of raising.
            progress: Called with ``"tokens"``, how many are done, and how many there are.

        Raises:
            FileExistsError: if there are pages already, unless ``overwrite`` is true, or files in the folder for Neuronpedia.
            ValueError: if a file of explanations has another form, or a folder to write holds what is read.
            OSError: if a folder cannot be written to. Nothing is computed before this is known, and what fails or is stopped changes
                no file.

        Returns:
            The facts, as ``gpt2 features --store --json`` prints them: ``l0``, ``explained_variance``, how many features are
            ``silent``, and ``features``.
        """
        options: dict[str, Any] = {
            "store": os.fspath(store.path if isinstance(store, Store) else store),
            "top_k": count(top_k, "top_k", 1),
            "feature": _features_of(feature),
            "details": bool(details),
            "pages": None if pages is None else os.fspath(pages),
            "explanations": _paths(explanations),
            "overwrite": bool(overwrite),
        }
        if (neuronpedia is None) != (neuronpedia_id is None):
            raise TypeError("neuronpedia: takes a folder, and neuronpedia_id the names there, as in 'gpt2-small/6-res-jb'; give both")
        if neuronpedia is not None:
            options["neuronpedia"] = {"folder": os.fspath(neuronpedia), "id": neuronpedia_id}
        if overwrite and pages is None:
            raise ValueError("overwrite: replaces pages; give pages")
        changes = _with(dictionary, {}, "features_in_store")
        report, _ = self._study("features-in-store", options, changes, allow_nonfinite=allow_nonfinite, progress=progress)
        return report

    def attribution_graph(
        self,
        text: Text,
        dictionary: Sequence[Dictionary | str | os.PathLike[str]],
        *,
        node_threshold: float = 0.8,
        edge_threshold: float = 0.98,
        max_logits: int = 10,
        logit_mass: float = 0.95,
        max_nodes: int = 5000,
        explanations: Paths = (),
        prepend_bos: bool | None = None,
        progress: Progress | None = None,
    ) -> AttributionGraph:
        """Which features of transcoders lead from a prompt to the next token (Ameisen et al. 2025, "Circuit Tracing").

        Transcoders take the place of the MLPs, with the error that they leave; attention weights and layer norms' scales stay as the
        prompt made them. Influence, pruning and scores are those of circuit-tracer 0.5.

        Args:
            text: The prompt.
            dictionary: A transcoder for the MLP of each layer, or its name, in any order.
            node_threshold, edge_threshold: The share of all influence that pruning keeps.
            max_logits, logit_mass: The likeliest next tokens, as many as together have this probability.
            max_nodes: Refuses a text with more nodes than this.
            explanations: Files with published explanations, JSON as Neuronpedia exports them, each with its layer: texts of the nodes.
            prepend_bos: Puts the model's first token before a text; as the model does, if there is no answer.
            progress: Called with ``"nodes"``, how many are done, and how many there are.

        Raises:
            ValueError: if a layer has no transcoder or two, one is of another model or is none, or the text has too many nodes.
        """
        named = [dictionary] if isinstance(dictionary, (str, os.PathLike, Dictionary)) else list(dictionary)
        options: dict[str, Any] = {
            "prompt": ids_of(self._own, text, prepend_bos=prepend_bos),
            "dictionary": [os.fspath(one) for one in named if not isinstance(one, Dictionary)],
            "node_threshold": float(node_threshold),
            "edge_threshold": float(edge_threshold),
            "max_logits": count(max_logits, "max_logits", 1),
            "logit_mass": float(logit_mass),
            "max_nodes": count(max_nodes, "max_nodes", 1),
            "explanations": _paths(explanations),
        }
        held = [one._own for one in named if isinstance(one, Dictionary)]  # pyright: ignore[reportPrivateUsage]
        inputs = self._own.inputs(held, options["dictionary"], options["explanations"])
        report, arrays = self._study("graph", options, {}, progress=progress, dictionaries=held)
        ids = {name: arrays[name].astype(np.int64) for name in ("active_features", "input_tokens", "logit_tokens")}
        return AttributionGraph(
            report,
            arrays["adjacency_matrix"],
            ids["active_features"],
            arrays["activation_values"],
            ids["input_tokens"],
            ids["logit_tokens"],
            arrays["logit_probabilities"],
            inputs,
        )

    def record(
        self,
        texts: str | os.PathLike[str] | Sequence[str],
        *,
        points: str | Sequence[str],
        out: str | os.PathLike[str],
        store: Literal["f32", "f16"] = "f32",
        shard_tokens: int = 32_768,
        by: Literal["line", "document", "json"] | None = None,
        field: str | None = None,
        bos: bool = False,
        window: int | None = None,
        resume: bool = False,
        progress: Progress | None = None,
        **changes: Unpack[Changes],
    ) -> Store:
        """Records the values at points over a corpus into a folder of shards, which :class:`Store` reads. After Ctrl-C, what is finished
        stays, and ``resume=True`` goes on.

        Args:
            texts: A list of texts, each a document; or the path of a file, or of a folder of .txt files.
            points: The points: ``"blocks.2.hook_resid_post"``, or ``"blocks.*.attn.hook_z"`` for every layer.
            out: The folder, new or empty.
            store: The precision of the values on disk.
            shard_tokens: Tokens of a shard at most.
            by: What a document of a file is: the whole file, each line, or a field of each line of JSON.
            field: The field of JSON lines that holds the text.
            bos: Puts the model's first token before each window.
            window: Tokens of a window at most; as many as the model reads, if there is no number.
            resume: Goes on where an earlier run stopped, or starts if there was none.
            progress: Called with ``"bytes"``, how many are done, and how many there are.
            **changes: Interventions that name no position.

        Raises:
            FileNotFoundError: if there is no such file or folder.
            ValueError: if the folder holds something else, or a value is not finite.
        """
        corpus, given = texts_of(texts, "texts")
        if given is not None and (by is not None or field is not None):
            raise TypeError(f"{'by' if by is not None else 'field'}: says how a file is cut into documents; each text of a list is one")
        options = {
            "corpus": corpus or "the texts",
            "points": [points] if isinstance(points, str) else [str(point) for point in points],
            "out": os.fspath(out),
            "store": store,
            "shard_tokens": count(shard_tokens, "shard_tokens", 1, 1 << 24),
            "by": by,
            "field": field,
            "bos": self._bos(bos, changes),
            "window": maybe(window, "window", 1),
            "resume": bool(resume),
        }
        report, notes = self._own.record(
            {
                "options": json.dumps({name: value for name, value in options.items() if value is not None}),
                "texts": given,
                "changes": changes_of(self._own, changes),
                "progress": progress,
            }
        )
        warn(notes)
        made = Store(out)
        made.report = json.loads(report)
        return made


def texts_of(texts: Any, what: str) -> tuple[str | None, list[str] | None]:
    """A path, or texts in memory."""
    if isinstance(texts, (str, os.PathLike)):
        path: str = os.fspath(texts)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        if not os.path.exists(path):
            raise FileNotFoundError(f"{what}: there is no file or folder {path!r}; to give a text itself, put it in a list: [text]")
        return path, None
    several: list[Any] = list(texts)
    for one in several:
        if not isinstance(one, str):
            raise TypeError(f"{what}: expected texts or the path of a file or folder, got {one!r}")
    if not several:
        raise ValueError(f"{what}: there is none")
    return None, several


def _paths(files: Paths) -> list[str]:
    """One path, or several."""
    return [os.fspath(files)] if isinstance(files, (str, os.PathLike)) else [os.fspath(file) for file in files]


def _features_of(feature: int | Sequence[int]) -> list[int]:
    several: list[Any] = [feature] if isinstance(feature, (int, np.integer)) else list(feature)
    return [count(one, "feature", 0, 2**32 - 1) for one in several]


def _with(dictionary: Dictionary | str | os.PathLike[str] | None, changes: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Interventions with the dictionary of a study, which is that of changed features, too."""
    if dictionary is None:
        if changes.get("dictionary") is None:
            raise TypeError(f"{what}: needs a dictionary; Dictionary.load opens one by its name")
        return dict(changes)
    if changes.get("dictionary") is not None:
        raise TypeError(f"{what}: the dictionary is given twice")
    return {**changes, "dictionary": dictionary}
