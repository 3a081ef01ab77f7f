"""What a model predicts: of one text, and of a whole corpus."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ._base import Base, Progress, Report
from ._inputs import Changes, changes_of
from ._notes import warn
from ._numbers import count, maybe
from ._types import Floats, Text

if sys.version_info >= (3, 11):
    from typing import Unpack
elif TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class Prediction:
    """What a model predicts along a text of T tokens, and after it."""

    report: Report
    """The facts, as ``gpt2 forward --json`` prints them: ``tokens`` with their log-probabilities, ``perplexity``, the most probable
    ``next`` tokens, and with ``compare`` the ``plain`` run and the ``changes``."""
    logits: Floats
    """(1, T, V)"""
    hidden_states: Floats
    """(L + 1, T, C): the embeddings, then the stream after each block, the last one after ``ln_f``."""
    points: Mapping[str, Floats]
    """The values at the points that were asked for, by name."""

    def __repr__(self) -> str:
        perplexity = self.report["perplexity"]
        surprised = "" if perplexity is None else f", perplexity {perplexity:.3f}"
        best = self.report["next"][:1]
        follows = f", next {best[0]['token']!r} with p {best[0]['probability']:.3f}" if best else ""
        return f"Prediction({len(self.report['tokens'])} tokens{surprised}{follows})"


class Predictions(Base):
    """What :class:`Model` predicts, as reports."""

    def forward(
        self,
        text: Text,
        *,
        top_k: int = 10,
        compare: bool = False,
        export_point: str | Sequence[str] = (),
        allow_nonfinite: bool = False,
        **changes: Unpack[Changes],
    ) -> Prediction:
        """The next token's probabilities, and how surprising a text is. Calling the model gives the logits alone, of many texts too.

        Args:
            text: The text.
            top_k: How many next tokens the report has.
            compare: Also runs without the interventions; the report has both.
            export_point: Points whose values to return: ``"blocks.1.attn.hook_z"``, or ``"blocks.*.hook_resid_post"`` for every layer.
            allow_nonfinite: Returns NaN and infinity instead of raising.
            **changes: Interventions.

        Returns:
            The report, logits, hidden states, and values at points, of the run with the interventions.

        Raises:
            ValueError: for ``compare`` without an intervention, or a point that the model lacks.
        """
        options = {
            "prompt": self._ids(text, changes),
            "top_k": count(top_k, "top_k"),
            "compare": bool(compare),
            "export_point": [export_point] if isinstance(export_point, str) else [str(point) for point in export_point],
        }
        report, arrays = self._study("forward", options, changes, allow_nonfinite=allow_nonfinite)
        points = {name: values for name, values in arrays.items() if name not in ("logits", "hidden_states")}
        return Prediction(report, arrays["logits"], arrays["hidden_states"], points)

    def evaluate(
        self,
        tasks: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        limit: int | None = None,
        stride: int | None = None,
        bootstrap: int = 100_000,
        samples: bool = False,
        journal: str | os.PathLike[str] | None = None,
        allow_nonfinite: bool = False,
        progress: Progress | None = None,
        **changes: Unpack[Changes],
    ) -> Report:
        """Runs standard evaluations by the definitions of lm-evaluation-harness, as ``gpt2 eval`` does. For the harness itself with this
        model, see :mod:`gpt2_candle.harness`.

        Args:
            tasks: One or several: ``"hellaswag=validation.jsonl"``, a task with the file of its data set in JSON lines or Parquet;
                ``"hellaswag"`` alone, whose data set comes from the Hub; ``"quiz.jsonl"``, questions of your own. The tasks are
                ``lambada_openai``, ``lambada_standard``, ``hellaswag``, ``wikitext``, ``wikitext103``, ``blimp`` and ``blimp_PART``.
            limit: How many examples of each task to run; all, if there is no number.
            stride: How far a window over a text that is longer than the context moves on; the context, if there is no number.
            bootstrap: How many samples to draw for the standard error of a perplexity, 2 at least; 0 leaves the error out.
            samples: Adds every example with its log-probabilities to the report.
            journal: A file that keeps finished work: a run that stopped goes on from it.
            allow_nonfinite: Returns NaN and infinity instead of raising.
            progress: Called with ``"requests"``, then with ``"samples"`` of each perplexity, how many are done, and how many there are.
            **changes: Interventions, which act on each text, a context with one choice, as on a prompt of its own. ``prepend_bos`` is
                refused: the definitions say which texts begin with the model's first token.

        Returns:
            The results in the form of the harness, as ``gpt2 eval --json`` prints them: ``results["hellaswag"]["acc,none"]``.

        Raises:
            FileNotFoundError, ValueError: if there is no such task or file, a row has not the fields of the task, or the model was loaded with
                ``prepend_bos``.
        """
        self._refuse_bos("evaluate", changes)
        several = [tasks] if isinstance(tasks, str | os.PathLike) else list(tasks)
        options = {
            "tasks": [os.fspath(task) for task in several],
            "limit": maybe(limit, "limit", 1),
            "stride": maybe(stride, "stride", 1),
            "bootstrap": count(bootstrap, "bootstrap"),
            "samples": bool(samples),
            "journal": None if journal is None else os.fspath(journal),
        }
        return self._study("eval", options, changes, allow_nonfinite=allow_nonfinite, progress=progress)[0]

    def score_corpus(
        self,
        corpus: str | os.PathLike[str],
        *,
        by: Literal["line", "document", "json"] | None = None,
        field: str | None = None,
        window: int | None = None,
        stride: int | None = None,
        bos: bool = False,
        jsonl: str | os.PathLike[str] | None = None,
        summaries: bool = False,
        resume: bool = False,
        overwrite: bool = False,
        progress: Progress | None = None,
        **changes: Unpack[Changes],
    ) -> Report:
        """How well the model predicts each document of a corpus, as ``gpt2 score`` does. A document longer than the context is read in
        windows that overlap. :meth:`score` gives the surprise of each token of texts in memory.

        Args:
            corpus: A text, JSON lines (.jsonl), or a folder of .txt files with its subfolders.
            by: What a document is: a whole file, each line that is not blank, or a field of each line of JSON. JSON lines in a .jsonl
                file, else a whole file, if there is no word.
            field: The field of JSON lines that holds the text; ``"text"`` if there is no name.
            window: The tokens of a window; the model's context, if there is no number.
            stride: How far a window moves on in a long document; half of a window, if there is no number.
            bos: Puts the model's first token before each document, so that its first token is predicted, too.
            jsonl: A file to write a line of JSON to for each document.
            summaries: Adds the summary of every head's attention to each line of ``jsonl``.
            resume: Goes on where an earlier run to ``jsonl`` stopped, or starts if there was none.
            overwrite: Replaces an existing ``jsonl``, or starts an unfinished one anew.
            progress: Called with ``"bytes"``, how many are done, and how many there are.
            **changes: Interventions, which act on each document as on a text of its own.

        Returns:
            The totals, as ``gpt2 score --json`` prints them: ``documents``, ``tokens``, ``predicted``, ``loss`` in nats a token,
            ``perplexity``.

        Raises:
            FileNotFoundError, OSError: if there is no such corpus.
            ValueError: if it holds no document, an option does not fit, or ``jsonl`` may not be written.
        """
        options = {
            "corpus": os.fspath(corpus),
            "by": by,
            "field": field,
            "window": maybe(window, "window", 2),
            "stride": maybe(stride, "stride", 1),
            "bos": self._bos(bos, changes),
            "jsonl": None if jsonl is None else os.fspath(jsonl),
            "summaries": bool(summaries),
            "resume": bool(resume),
            "overwrite": bool(overwrite),
        }
        given = json.dumps({name: value for name, value in options.items() if value is not None})
        report, notes = self._own.score_corpus(given, changes_of(self._own, changes), progress)
        warn(notes)
        found: Report = json.loads(report)
        return found
