"""Detokenizer for tokenizers of every other kind: SentencePiece-like, with metaspaces and byte fallback."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_REPLACEMENT = "\ufffd"


@dataclass(frozen=True, slots=True)
class WindowVocabulary:
    """What window detokenizers share."""

    tokenizer: Tokenizer
    special_ids: frozenset[int]
    # Tokens that stand for one byte each; a run of them is text only as a whole. Empty without byte fallback.
    byte_ids: frozenset[int]

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, special_ids: frozenset[int]) -> WindowVocabulary:
        byte_ids: frozenset[int] = frozenset()
        if '"ByteFallback"' in tokenizer.to_str():
            vocabulary = tokenizer.get_vocab(with_added_tokens=False)
            byte_ids = frozenset(i for token, i in vocabulary.items() if _BYTE_TOKEN.fullmatch(token))
        return cls(tokenizer, special_ids, byte_ids)


class WindowDetokenizer:
    """A Detokenizer that decodes the new tokens behind the last ones whose text is out.

    Those take what a decoder does to the start of a text (leading spaces), so that the difference of two
    decodes is the new text. A run of byte tokens is held until it ends: one bad byte spoils the whole run.
    """

    __slots__ = ("_anchor", "_anchor_len", "_pending", "_skip", "_vocabulary")

    def __init__(self, vocabulary: WindowVocabulary, *, skip_special_tokens: bool) -> None:
        self._vocabulary = vocabulary
        self._skip = vocabulary.special_ids if skip_special_tokens else frozenset()
        self._anchor: list[int] = []
        self._anchor_len = 0  # characters that the anchor alone decodes to
        self._pending: list[int] = []

    def push(self, ids: Sequence[int]) -> str:
        known = self._vocabulary.tokenizer.id_to_token
        new = [i for i in ids if i not in self._skip and known(i)]
        if not new:
            return ""
        self._pending += new
        if new[-1] in self._vocabulary.byte_ids:
            return ""
        text = self._decode(self._anchor + self._pending)
        # Byte-level decoders inside a sequence of decoders may leave a code point open.
        if text.endswith(_REPLACEMENT):
            return ""
        delta = text[self._anchor_len :]
        self._anchor = self._pending
        self._anchor_len = len(self._decode(self._anchor))
        self._pending = []
        return delta

    def finish(self) -> str:
        if not self._pending:
            return ""
        delta = self._decode(self._anchor + self._pending)[self._anchor_len :]
        self._pending = []
        return delta

    def _decode(self, ids: list[int]) -> str:
        return self._vocabulary.tokenizer.decode(ids, skip_special_tokens=False)
