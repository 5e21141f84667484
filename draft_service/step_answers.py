"""StepAnswers: what a batch's trees make of its asks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from draft_service.replies import Replies, SessionCode, SessionReply, TreeReplies
from draft_service.session_columns import SessionColumns
from draft_service.step_batch import NO_ROUND, StepBatch
from engine.tree_columns import TreeColumns
from kernels.round_asks import answered_stream
from paceline.tree import DraftTree


@dataclass(frozen=True, slots=True)
class StepAnswers:
    """The answers with a tree, and those without one, with the seats of their sessions."""

    trees: TreeReplies
    tree_seats: np.ndarray  # int64
    others: list[SessionReply]
    other_seats: np.ndarray  # int64
    stream: int | None  # of all sessions, where that was seen at once

    @classmethod
    def of(cls, batch: StepBatch, trees: TreeColumns, columns: SessionColumns) -> Self:
        """trees: of each session. Where one was asked for and there is room for no level, it is the root alone."""
        seats = batch.seat
        stream = answered_stream(batch.table, trees.num_nodes, columns.stream)
        if stream is not None:
            return cls(TreeReplies(batch.table, trees), seats, [], seats[:0], stream)
        lacks = (batch.shapes[0] > 0) & (trees.num_nodes == 0)
        if lacks.any():
            roots = batch.tokens[batch.num_rows.cumsum() - 1].tolist()
            trees = TreeColumns.of(
                [
                    DraftTree.single(root) if lack else tree
                    for root, lack, tree in zip(roots, lacks, trees.trees(), strict=True)
                ]
            )
        is_due = batch.round != NO_ROUND
        grown = (is_due & (trees.num_nodes > 0)).nonzero()[0]
        bare = (is_due & (trees.num_nodes == 0)).nonzero()[0]
        bare_columns = batch.session[bare], batch.committed_len[bare], batch.round[bare]
        return cls(
            trees=TreeReplies(batch.table, trees).take(grown),
            tree_seats=seats[grown],
            others=[
                SessionReply(session, SessionCode.OK, committed_len, round_)
                for session, committed_len, round_ in zip(*(column.tolist() for column in bare_columns), strict=True)
            ],
            other_seats=seats[bare],
            stream=None,
        )

    def give(self, columns: SessionColumns, replies: Replies) -> None:
        """Puts each answer into ``replies``, for its session's stream."""
        if self.stream is not None:
            replies.add(self.stream, self.trees)
            return
        for stream, trees in self._by_stream(columns.stream[self.tree_seats]):
            replies.add(stream, trees)
        for stream, other in zip(columns.stream[self.other_seats].tolist(), self.others, strict=True):
            replies.add(stream, other)

    def keep(self, columns: SessionColumns) -> None:
        """So that a round which is asked again gets its answer again."""
        columns.keep_answers(self.tree_seats, self.trees.reply)
        if self.others:
            columns.keep_answers(self.other_seats, self.others.__getitem__)

    def _by_stream(self, streams: np.ndarray) -> Iterator[tuple[int, TreeReplies]]:
        numbers = set(streams.tolist())
        if len(numbers) == 1:
            yield numbers.pop(), self.trees
            return
        for number in sorted(numbers):
            yield number, self.trees.take((streams == number).nonzero()[0])
