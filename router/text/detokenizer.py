"""What turns a stream of tokens into a stream of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Detokenizer(Protocol):
    """Serves one output. The pieces of push and finish add up to the tokenizer's decode of all ids together."""

    def push(self, ids: Sequence[int]) -> str:
        """Text that became complete with these ids: no later id can change it, no code point is split."""

    def finish(self) -> str:
        """What was held back: the output ends here."""
