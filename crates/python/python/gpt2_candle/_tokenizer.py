"""The tokenizer that comes with a model."""

from __future__ import annotations

from collections.abc import Sequence

from . import _native
from ._notes import warn


class Tokenizer:
    """Text to token ids and back. A model's is :attr:`Model.tokenizer`."""

    def __init__(self, model: _native.Model) -> None:
        self._model = model

    def encode(self, text: str) -> list[int]:
        """The ids of a text. Characters that the vocabulary cannot spell are left out, with a warning."""
        ids, note = self._model.encode(text)
        if note is not None:
            warn([note])
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids. Bytes that are no character become ``U+FFFD``."""
        return self._model.decode(list(ids))

    def tokens(self, text: str | Sequence[int]) -> list[str]:
        """The text of each token, of a text or of ids."""
        return self._model.tokens(self.encode(text) if isinstance(text, str) else list(text))

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """For each token, its place in the text: ``text[start:end]``. Tokens that share a character both have it."""
        return self._model.offsets(text)

    def token_to_id(self, token: str) -> int:
        """The id of the single token that spells ``token``.

        Raises:
            ValueError: if it is several tokens; a word inside a text begins with its space.
        """
        ids = self.encode(token)
        if len(ids) != 1:
            raise ValueError(
                f"{token!r} is {len(ids)} tokens ({', '.join(map(repr, self.tokens(ids)))}), expected one; a word inside a text "
                "begins with its space"
            )
        return ids[0]
