"""Corpus: all conversations of a data folder in memory, as columns, the held-out ones apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from training.shards import ShardIndex


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """Conversation i has tokens[offsets[i]:offsets[i + 1]]; its parts begin where Conversation says."""

    tokens: np.ndarray  # [tokens] uint16 or uint32
    offsets: np.ndarray  # [n + 1] int64
    question_start: np.ndarray  # [n] int64, within the conversation
    question_end: np.ndarray  # [n] int64
    answer_start: np.ndarray  # [n] int64
    temperature: np.ndarray  # [n] float32
    is_ended: np.ndarray  # [n] bool
    number: np.ndarray  # [n] int64

    @classmethod
    def read(cls, index: ShardIndex) -> Corpus:
        """Raises ConfigError for a damaged file."""

        def column(name: str) -> np.ndarray:
            return np.concatenate(index.columns(name))

        offsets = np.concatenate([[0], np.cumsum(column("length"), dtype=np.int64)])
        parts = {name: column(name).astype(np.int64) for name in ("question_start", "question_end", "answer_start")}
        return cls(
            tokens=column("tokens"),
            offsets=offsets,
            temperature=column("temperature"),
            is_ended=column("is_ended"),
            number=column("number"),
            **parts,
        )

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.number)

    def split(self, held_out_every: int) -> tuple[np.ndarray, np.ndarray]:
        """Indices int64 of what is trained on and of what is held out, by number: more data later move nothing."""
        is_held_out = self.number % held_out_every == 0
        return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)

    def regions(self) -> np.ndarray:
        """[tokens] int8: what each token is, TEMPLATE, QUESTION or ANSWER."""
        place = np.arange(len(self.tokens)) - np.repeat(self.offsets[:-1], self.lengths)
        start, end, answer = (
            np.repeat(part, self.lengths) for part in (self.question_start, self.question_end, self.answer_start)
        )
        is_question = (place >= start) & (place < end)
        return np.where(place >= answer, ANSWER, np.where(is_question, QUESTION, TEMPLATE)).astype(np.int8)

    def prompts(self, indices: Sequence[int] | np.ndarray) -> list[list[int]]:
        """The tokens before the answers."""
        return [
            self.tokens[self.offsets[i] : self.offsets[i] + self.answer_start[i]].astype(np.int64).tolist()
            for i in indices
        ]


TEMPLATE, QUESTION, ANSWER = 0, 1, 2
