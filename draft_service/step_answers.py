"""StepAnswers: what a batch's trees make of its asks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from draft_service.replies import SessionCode, SessionReply, StreamReplies, TreeReplies
from draft_service.session_columns import SessionColumns
from draft_service.step_batch import NO_ROUND, StepBatch
from engine.tree_columns import TreeColumns
from kernels.round_wire import answered_stream
from paceline.tree import DraftTree


@dataclass(frozen=True, slots=True)
class StepAnswers:
    """The answers with a tree, and those without one, with the seats of their sessions; and all by stream."""

    trees: TreeReplies
    tree_seats: np.ndarray | None  # int64; None: those of the batch
    others: list[SessionReply]
    other_seats: np.ndarray | None  # int64; None: there are none
    by_stream: dict[int, StreamReplies]

    @classmethod
    def of(cls, batch: StepBatch, trees: TreeColumns, columns: SessionColumns) -> Self:
        """trees: of each session. Where one was asked for and there is room for no level, it is the root alone."""
        stream = answered_stream(batch.table, trees, columns.stream)
        if stream is None:
            return cls._of_some(batch, trees, columns)
        replies = TreeReplies(batch.table, trees)
        return cls(replies, None, [], None, {stream: [replies]})

    @classmethod
    def _of_some(cls, batch: StepBatch, trees: TreeColumns, columns: SessionColumns) -> Self:
        """Of sessions of several streams, or some of which have no round or get no tree."""
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
        replies = TreeReplies(batch.table, trees).take(grown)
        others = [
            SessionReply(session, SessionCode.OK, committed_len, round_)
            for session, committed_len, round_ in zip(*(column.tolist() for column in bare_columns), strict=True)
        ]
        tree_seats, other_seats = batch.seat[grown], batch.seat[bare]
        by_stream = dict(_by_stream(replies, columns.stream[tree_seats]))
        for stream, other in zip(columns.stream[other_seats].tolist(), others, strict=True):
            by_stream.setdefault(stream, []).append(other)
        return cls(replies, tree_seats, others, other_seats, by_stream)

    def keep(self, batch: StepBatch, columns: SessionColumns) -> None:
        """So that a round which is asked again gets its answer again. batch: the one that is answered."""
        columns.keep_answers(batch.seat if self.tree_seats is None else self.tree_seats, self.trees.reply)
        if self.other_seats is not None:
            columns.keep_answers(self.other_seats, self.others.__getitem__)


def _by_stream(replies: TreeReplies, streams: np.ndarray) -> Iterator[tuple[int, StreamReplies]]:
    """streams: int64, of each session."""
    numbers = sorted(set(streams.tolist()))
    for number in numbers:
        part = replies if len(numbers) == 1 else replies.take((streams == number).nonzero()[0])
        yield number, [part]
