"""What the engine thread answers: values, no messages."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self, TypeAlias

import numpy as np

from engine.tree_columns import TreeColumns
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
class TreeReplies:
    """Answers that all carry a tree. Columns [b]."""

    session: np.ndarray  # uint64
    round: np.ndarray  # int64
    committed_len: np.ndarray  # int64
    trees: TreeColumns

    @classmethod
    def of(cls, replies: Sequence[SessionReply]) -> Self:
        """Of answers that all carry a tree."""
        return cls(
            session=np.array([reply.session for reply in replies], np.uint64),
            round=np.array([reply.round for reply in replies], np.int64),
            committed_len=np.array([reply.committed_len for reply in replies], np.int64),
            trees=TreeColumns.of([reply.tree for reply in replies]),
        )

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """All of them, in order. At least one part."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            session=np.concatenate([part.session for part in parts]),
            round=np.concatenate([part.round for part in parts]),
            committed_len=np.concatenate([part.committed_len for part in parts]),
            trees=TreeColumns.join([part.trees for part in parts]),
        )

    def take(self, places: np.ndarray) -> TreeReplies:
        """Some of them. places: int64."""
        return TreeReplies(
            self.session[places], self.round[places], self.committed_len[places], self.trees.take(places)
        )

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
