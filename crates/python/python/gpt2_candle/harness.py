# pyright: basic, reportMissingImports=false
"""A model for EleutherAI's lm-evaluation-harness, which must be installed (``pip install lm_eval``)::

    import lm_eval
    from gpt2_candle import Model
    from gpt2_candle.harness import HarnessModel

    model = HarnessModel(Model.load("gpt2"))
    lm_eval.simple_evaluate(model=model, tasks=["hellaswag"], limit=100)

It gives the harness log-probabilities and greedy continuations, with any interventions of this package. :meth:`Model.evaluate` runs a few
tasks without the harness.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from ._hooks import refuse_hooks
from ._inputs import Changes, changes_of
from ._model import Model

if sys.version_info >= (3, 11):
    from typing import Unpack
elif TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["HarnessModel"]


class HarnessModel(TemplateLM):  # type: ignore[misc]
    """A :class:`Model` in the form that lm-evaluation-harness runs."""

    backend = "causal"

    def __init__(self, model: Model, **changes: Unpack[Changes]) -> None:
        """Args:
        model: The model.
        **changes: Interventions, which act on each text, a context with one continuation, as on a prompt of its own.

        Raises:
            ValueError: for ``prepend_bos``, here or when the model was loaded: the harness says which texts begin with the first token.
        """
        super().__init__()
        model._refuse_bos("HarnessModel", changes)
        self.model = model
        self.changes = changes
        self._changes = changes_of(model._own, changes)

    @property
    def max_length(self) -> int:
        """The tokens that the model reads."""
        return int(self.model.config["n_positions"])

    @property
    def max_gen_toks(self) -> int:
        """The most tokens to generate, if a task does not say."""
        return 256

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return self._token("eos_token_id", "bos_token_id")

    @property
    def prefix_token_id(self) -> int:
        """The token that stands before a text without a context."""
        return self._token("bos_token_id", "eos_token_id")

    @property
    def tokenizer_name(self) -> str:
        """The name under which the harness keeps answers."""
        return repr(self.model)

    def _token(self, *names: str) -> int:
        for name in names:
            found: Any = self.model.config.get(name)
            found = found[0] if isinstance(found, list) and found else found
            if isinstance(found, int):
                return found
        raise ValueError("the model's config names neither a bos_token_id nor an eos_token_id; add one to its config.json")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **options: Any) -> list[int]:
        """The ids of a text."""
        return self.model.tokenizer.encode(string)

    def tok_decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of ids."""
        return self.model.tokenizer.decode(tokens)

    def _loglikelihood_tokens(
        self, requests: list[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **options: Any
    ) -> list[tuple[float, bool]]:
        refuse_hooks(self.model._own)
        texts = [(context + continuation)[-(self.max_length + 1) :] for _, context, continuation in requests]
        predicted = [len(continuation) for _, _, continuation in requests]
        found = self.model._own.likelihoods(texts, predicted, self._changes, None)
        for (request, _, _), answer in zip(requests, found, strict=True):
            if request is not None:
                self.cache_hook.add_partial("loglikelihood", request, answer)
        return found

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of whole texts, in windows that hardly overlap."""
        sums = []
        for (text,) in [request.args for request in requests]:
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(text), prefix_token=self.prefix_token_id, max_seq_len=self.max_length, context_len=1
            )
            pairs = [(None, *make_disjoint_window(window)) for window in windows]
            sums.append(sum(log_probability for log_probability, _ in self._loglikelihood_tokens(pairs)))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), sums[-1])
        return sums

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Greedy continuations, up to the first of a task's stop strings."""
        texts = []
        for context, options in [request.args for request in requests]:
            if options.get("do_sample") or options.get("temperature"):
                raise ValueError(
                    "a task asks for random text, and HarnessModel gives the most probable one alone; set do_sample to false and the "
                    "temperature to 0 in its generation_kwargs"
                )
            until = options.get("until") or []
            stop = [until] if isinstance(until, str) else list(until)
            most = int(options.get("max_gen_toks", self.max_gen_toks))
            most = min(most, self.max_length - 1)
            ids = self.tok_encode(context)[-(self.max_length + 1 - most) :] or [self.prefix_token_id]
            found = self.model.generate([ids], greedy=True, max_new_tokens=most, stop=stop, **self.changes)[0]
            texts.append(found.text)
        return texts
