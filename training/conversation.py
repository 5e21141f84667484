"""Conversation: the token ids of one question and its answer, and where each part lies."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class Conversation:
    """tokens[question_start:question_end] is the target's own question (empty where a user's prompt was given),
    tokens[answer_start:] the answer with its end token."""

    number: int  # in the order of the data: equal numbers of equal settings are equal conversations
    tokens: np.ndarray  # [n] int32
    question_start: int
    question_end: int
    answer_start: int
    temperature: float  # of the answer; -1 where it was given
    is_ended: bool  # by an end token; else cut at its limit

    @property
    def key(self) -> int:
        """Equal, as a rule only, where the words before the answer are."""
        if self.question_end > self.question_start:
            words = self.tokens[self.question_start : self.question_end]
        else:
            words = self.tokens[: self.answer_start]
        digest = hashlib.blake2b(words.astype("<i4").tobytes(), digest_size=8).digest()
        return int.from_bytes(digest, "little")

    @property
    def is_empty(self) -> bool:
        """Whether it has no question, or no answer past its end token."""
        has_question = self.question_end > self.question_start or self.question_start == self.answer_start > 0
        return not has_question or len(self.tokens) - self.answer_start < 2
