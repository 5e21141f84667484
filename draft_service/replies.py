"""What the engine thread answers: values, no messages."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self, TypeAlias

import numpy as np

from draft_service.round_table import RoundTable
from engine.tree_columns import TreeColumns
from kernels.round_wire import COMMITTED_LEN, ROUND, SESSION
from paceline.tree import DraftTree


class SessionCode(enum.IntEnum):
    """The numbers are those of the wire."""

    OK = 1
    LENGTH_DIFFERS = 2
    FULL = 3
    UNKNOWN = 4
    DRAINING = 5


class SessionReply(NamedTuple):
    """The answer to an open (round 0) or to one round of a session."""

    session: int
    code: SessionCode
    committed_len: int  # rows held
    round: int = 0
    tree: DraftTree | None = None  # its root is the token at position committed_len


@dataclass(frozen=True, slots=True, eq=False)
class TreeReplies(RoundTable):
    """Answers that all carry a tree."""

    table: np.ndarray  # int64: rows up to COMMITTED_LEN at least
    trees: TreeColumns

    @classmethod
    def of(cls, replies: Sequence[SessionReply]) -> Self:
        """Of answers that all carry a tree."""
        table = np.empty((COMMITTED_LEN + 1, len(replies)), np.int64)
        table[SESSION] = np.array([reply.session for reply in replies], np.uint64).view(np.int64)
        table[ROUND] = [reply.round for reply in replies]
        table[COMMITTED_LEN] = [reply.committed_len for reply in replies]
        return cls(table, TreeColumns.of([reply.tree for reply in replies]))

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """All of them, in order. At least one part."""
        if len(parts) == 1:
            return parts[0]
        tables = [part.table[: COMMITTED_LEN + 1] for part in parts]
        return cls(np.concatenate(tables, axis=1), TreeColumns.join([part.trees for part in parts]))

    def __len__(self) -> int:
        return self.table.shape[1]

    def take(self, places: np.ndarray) -> TreeReplies:
        """Some of them. places: int64."""
        return TreeReplies(self.table.take(places, axis=1), self.trees.take(places))

    def reply(self, place: int) -> SessionReply:
        """One of them."""
        (reply,) = self.take(np.array([place])).each()
        return reply

    def each(self) -> Iterator[SessionReply]:
        """One by one."""
        columns = (self.session.tolist(), self.committed_len.tolist(), self.round.tolist(), self.trees.trees())
        for session, committed_len, round_, tree in zip(*columns, strict=True):
            yield SessionReply(session, SessionCode.OK, committed_len, round_, tree)


StreamReplies: TypeAlias = "list[SessionReply | TreeReplies]"


def each_reply(replies: Iterable[SessionReply | TreeReplies]) -> Iterator[SessionReply]:
    """One a session and answer."""
    for reply in replies:
        if isinstance(reply, TreeReplies):
            yield from reply.each()
        else:
            yield reply


@dataclass(frozen=True, slots=True)
class SyncReply:
    """The answer to one message of bulk rows."""

    ticket: int
    session: int
    code: SessionCode
    committed_len: int


@dataclass(slots=True)
class Replies:
    """Gathers answers in the order in which they were given."""

    by_stream: dict[int, StreamReplies] = field(default_factory=dict)
    syncs: list[SyncReply] = field(default_factory=list)

    def add(self, stream: int, reply: SessionReply | TreeReplies) -> None:
        self.by_stream.setdefault(stream, []).append(reply)

    def extend(self, later: Replies) -> None:
        """Takes in answers that were given after these."""
        for stream, replies in later.by_stream.items():
            self.by_stream.setdefault(stream, []).extend(replies)
        self.syncs.extend(later.syncs)

    def __bool__(self) -> bool:
        return bool(self.by_stream or self.syncs)
