"""What the engine thread answers: values, no messages."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple

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

    by_stream: dict[int, list[SessionReply]] = field(default_factory=dict)
    syncs: list[SyncReply] = field(default_factory=list)

    def add(self, stream: int, reply: SessionReply) -> None:
        self.by_stream.setdefault(stream, []).append(reply)

    def extend(self, later: Replies) -> None:
        """Takes in answers that were given after these."""
        for stream, replies in later.by_stream.items():
            self.by_stream.setdefault(stream, []).extend(replies)
        self.syncs.extend(later.syncs)

    def __bool__(self) -> bool:
        return bool(self.by_stream or self.syncs)
