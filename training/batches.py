"""Batches: which conversations run together at which step, and their tokens as a padded rectangle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from training.corpus import Corpus

_WINDOW = 64  # batches' worth of conversations that are sorted by length together


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Conversations of like length, one a row, padded at the end."""

    tokens: np.ndarray  # [b, t] int64, 0 past a conversation's end
    lengths: np.ndarray  # [b] int64
    weights: np.ndarray  # [b, t] float32: of a position's token in the loss, 0 past the end


@dataclass(frozen=True, slots=True)
class BatchRules:
    """How batches are filled."""

    batch_tokens: int  # b * t at most
    sequence_tokens: int  # a longer conversation is cut
    question_weight: float
    seed: int


class Batches:
    """The batches of every epoch: a function of the rules, the corpus and the epoch alone."""

    def __init__(self, corpus: Corpus, indices: np.ndarray, rules: BatchRules) -> None:
        """indices: the conversations to take, at least one."""
        assert len(indices)
        self._corpus, self._indices, self._rules = corpus, indices, rules
        self._lengths = np.minimum(corpus.lengths[indices], rules.sequence_tokens)
        self._plan: tuple[int, list[np.ndarray]] = (-1, [])

    @property
    def num_tokens(self) -> int:
        """Of an epoch."""
        return int(self._lengths.sum())

    def in_epoch(self, epoch: int) -> int:
        """Batches."""
        return len(self._plan_of(epoch))

    def from_number(self, number: int, stride: int) -> Iterator[Batch]:
        """Batches number, number + stride, ... counted over all epochs, without end."""
        epoch = 0
        while True:
            count = self.in_epoch(epoch)
            while number < count:
                yield self._gather(self._plan_of(epoch)[number])
                number += stride
            number -= count
            epoch += 1

    def _plan_of(self, epoch: int) -> list[np.ndarray]:
        """Places in the indices, one array a batch: like lengths together, in random order."""
        if self._plan[0] == epoch:
            return self._plan[1]
        rng = np.random.default_rng((self._rules.seed, epoch))
        order = rng.permutation(len(self._indices))
        window = max(1, _WINDOW * self._rules.batch_tokens * len(order) // max(self.num_tokens, 1))
        batches = []
        for start in range(0, len(order), window):
            part = order[start : start + window]
            part = part[np.argsort(self._lengths[part], kind="stable")]
            batches += self._cut(part)
        plan = [batches[i] for i in rng.permutation(len(batches))]
        self._plan = (epoch, plan)
        return plan

    def _cut(self, ordered: np.ndarray) -> list[np.ndarray]:
        """Runs of ascending length whose rectangles fit batch_tokens."""
        cuts, first = [], 0
        for place, length in enumerate(self._lengths[ordered].tolist()):
            if (place + 1 - first) * length > self._rules.batch_tokens and place > first:
                cuts.append(place)
                first = place
        return np.split(ordered, cuts)

    def _gather(self, places: np.ndarray) -> Batch:
        lengths = self._lengths[places]
        column = np.arange(lengths.max())
        is_token = column < lengths[:, None]
        corpus, at = self._corpus, self._indices[places, None]
        flat = np.where(is_token, corpus.offsets[at] + column, 0)
        tokens = np.where(is_token, corpus.tokens[flat], 0).astype(np.int64)
        is_question = (column >= corpus.question_start[at]) & (column < corpus.question_end[at])
        weights = (column >= corpus.answer_start[at]) + self._rules.question_weight * is_question
        return Batch(tokens, lengths, (weights * is_token).astype(np.float32))
