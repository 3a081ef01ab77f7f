"""What every part of a model has: its facts, tokens, pictures, and the engine's studies."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import numpy as np

from . import _native
from ._inputs import all_answers, changes_of, ids_of, refuse_one_each
from ._metrics import NativeMetric, native_function, positions_of, reads_pairs
from ._notes import warn
from ._numbers import array_of, count
from ._results import Map
from ._tokenizer import Tokenizer
from ._types import Answers, Floats, MetricFunction, MetricName, Text

Report = dict[str, Any]
"""The report of a study: the same facts, under the same names, as the command's ``--json``."""

Progress = Callable[[str, int, "int | None"], None]
"""Called with the name of the steps, how many are done, and how many there are."""

_METRICS: tuple[str, ...] = get_args(MetricName)
_DIFFERENCES = ("logit-difference", "probability-difference")

_STUDIES: dict[str, tuple[list[str], dict[str, Any]]] = {
    name: (refused, json.loads(defaults)) for name, refused, defaults in _native.studies()
}


# Studies of the weights or the vocabulary alone, whose results no hook could change.
_WITHOUT_A_PASS = ("circuits", "pairs")


class Base:
    """A native model and its facts."""

    def __init__(self, native: _native.Model) -> None:
        self._own = native
        self._facts: dict[str, Any] = json.loads(native.facts())

    @property
    def name(self) -> str:
        """The model's folder, file or name, with its commit on the Hub."""
        return str(self._facts["name"])

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer.

        Raises:
            ValueError: if the model came without one.
        """
        if not self._facts["has_tokenizer"]:
            raise ValueError(f"{self.name}: has no tokenizer here; give token ids instead of text")
        return Tokenizer(self._own)

    def _study(
        self,
        name: str,
        options: Mapping[str, Any],
        changes: Mapping[str, Any],
        *,
        seed: int = 0,
        allow_nonfinite: bool = False,
        progress: Progress | None = None,
        metric: NativeMetric | None = None,
        dictionaries: Sequence[_native.Dictionary] = (),
    ) -> tuple[Report, dict[str, Floats]]:
        """Runs a study of the engine: its report, and its arrays by name. Options that are ``None`` have their defaults."""
        known = _STUDIES[name][1]
        unknown = [option for option in options if option not in known]
        if unknown:
            nearest = difflib.get_close_matches(unknown[0], known)
            raise TypeError(f"{name}: there is no option {unknown[0]!r}" + (f"; did you mean {nearest[0]!r}?" if nearest else ""))
        report, arrays, notes = self._own.study(
            {
                "name": name,
                "options": json.dumps({option: value for option, value in options.items() if value is not None}),
                "changes": changes_of(self._own, changes, runs_hooks=name in _WITHOUT_A_PASS),
                "dictionaries": list(dictionaries),
                "metric": metric,
                "seed": count(seed, "seed"),
                "allow_nonfinite": bool(allow_nonfinite),
                "progress": progress,
            }
        )
        warn(notes)
        return json.loads(report), {one: np.asarray(values) for one, values in arrays.items()}

    def _ids(self, text: Text, changes: Mapping[str, Any]) -> list[int]:
        """The tokens of one text, read as ``changes`` says."""
        return ids_of(self._own, text, prepend_bos=changes.get("prepend_bos"))

    def _bos(self, bos: bool, changes: Mapping[str, Any]) -> bool:
        """Whether a token stands before each document of a corpus."""
        given = changes.get("prepend_bos")
        return bool(bos) or bool(self._facts["prepend_bos"] if given is None else given)

    def _refuse_bos(self, what: str, changes: Mapping[str, Any]) -> None:
        """Refuses a first token before every text, where a definition says which texts begin with it."""
        if self._bos(False, changes):
            raise ValueError(
                f"prepend_bos: {what} puts the model's first token before a text without a context alone, as lm-evaluation-harness does; "
                "give prepend_bos=False, or load the model without it"
            )

    def _measure(
        self,
        answer: Answers | None,
        against: Answers | None,
        metric: MetricName | MetricFunction | None,
        positions: int | Sequence[int] | None = None,
        *,
        reference: Any = None,
        together: bool = False,
        texts: int = 1,
    ) -> dict[str, Any]:
        """What to measure, for the native half: after so many texts, the same answers of all."""
        for one, what in ((answer, "answer"), (against, "against")):
            refuse_one_each(one, texts, what, "call it text by text")
        is_function = callable(metric)
        if is_function and any(one is not None for one in (answer, against, positions)):
            raise TypeError("metric: a function measures the logits as it likes; leave answer, against and positions out")
        if against is not None and answer is None:
            raise TypeError("against: is what answer is compared with; give answer too")
        if metric is not None and not is_function and metric not in _METRICS:
            raise ValueError(f"metric {metric!r}: expected {', '.join(_METRICS)} or a function of logits")
        if reads_pairs(metric):
            raise TypeError("metric: there are no pairs here for a second parameter; a function of logits has one")
        if metric in _DIFFERENCES and against is None:
            raise TypeError(f"metric {metric!r}: needs wrong answers, too; give against")
        if metric is not None and metric not in _DIFFERENCES and against is not None:
            raise TypeError(f"metric {metric!r}: does not read against; leave it out, or measure one of {', '.join(_DIFFERENCES)}")
        if metric in ("loss", "kl") and answer is not None:
            raise TypeError(f"metric {metric!r}: does not read answer; leave it out")
        if metric in ("loss", "kl") and positions is not None:
            raise TypeError(f"positions: are for metrics of answers, not for {metric!r}")
        if reference is not None and metric != "kl":
            raise TypeError("reference: is for metric='kl'")
        logits = None if reference is None else np.asarray(reference)
        return {
            "answer": None if answer is None else self._answer(answer, against),
            "name": None if is_function else metric,
            "function": native_function(metric) if is_function else None,
            "reference": None if logits is None else array_of(logits, "reference", dtype=None if logits.dtype == np.float64 else "float32"),
            "positions": positions_of(positions),
            "together": together,
        }

    def _pair(self, clean: Text, corrupt: Text, measure: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "clean": ids_of(self._own, clean, "clean", prepend_bos=changes.get("prepend_bos")),
            "corrupt": ids_of(self._own, corrupt, "corrupt", prepend_bos=changes.get("prepend_bos")),
            "measure": measure,
            "changes": changes_of(self._own, changes),
        }

    def _answer(self, answer: Answers, against: Answers | None) -> tuple[list[int], list[int] | None]:
        return self._tokens(answer, "answer"), None if against is None else self._tokens(against, "against")

    def _tokens(self, answers: Any, what: str) -> list[int]:
        """The ids of one answer or of several."""
        several = all_answers(answers)
        if not several:
            raise ValueError(f"{what} is empty: give at least one token")
        return [self._token(one, what) for one in several]

    def _token(self, token: str | int, what: str) -> int:
        if isinstance(token, str):
            return self.tokenizer.token_to_id(token)
        if isinstance(token, bool) or not isinstance(token, (int, np.integer)):
            raise TypeError(f"{what}: expected a token as text or as its id, got {token!r}")
        if not 0 <= token < self._facts["config"]["vocab_size"]:
            raise ValueError(f"{what}: there is no token {token}; the vocabulary has {self._facts['config']['vocab_size']}")
        return int(token)

    def _map(
        self,
        name: str,
        values: Any,
        axes: tuple[str, ...] = ("layer", "head"),
        *,
        unit: str,
        ids: list[int] | None = None,
        changes: dict[str, Any] | None = None,
    ) -> Map:
        """A map whose pictures say what made it: a text, if it is of one, and interventions."""
        read = ids or []
        said = self._own.said(read, changes) if changes else []

        def draw(path: str, one: Map) -> bytes:
            if one.values.ndim > 2:
                raise ValueError(f"{one.name}: has {one.values.ndim} axes, and a picture has two; draw a part of it")
            # One axis is a row of its own.
            numbers = np.atleast_2d(np.asarray(one.values, dtype=np.float32))
            row, column = ("", one.axes[0]) if one.values.ndim == 1 else one.axes
            rows, columns = ([str(i) for i in range(n)] for n in numbers.shape)
            rows = rows if row else [""]
            of = {"name": one.name, "unit": one.unit, "row_axis": row, "column_axis": column, "rows": rows, "columns": columns}
            return self._own.maps(path, self.name, read, said, [{**of, "values": array_of(numbers, one.name)}])

        return Map(name.replace("_", " "), np.asarray(values), axes, unit, draw)
