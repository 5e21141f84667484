"""What reaches the engine thread through its mailbox. Values only, decoded and checked by the sender."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from paceline.errors import PacelineError
from paceline.types import SpeculationDecision
from target_service.draft_session import ArrivedTree
from target_service.request import Cost, Request


@dataclass(frozen=True, slots=True)
class StreamOpened:
    stream: int


@dataclass(frozen=True, slots=True)
class StreamClosed:
    stream: int


@dataclass(frozen=True, slots=True)
class Submitted:
    requests: list[Request]


@dataclass(frozen=True, slots=True, eq=False)
class Refused:
    """A submission that did not pass the edge; it spent its cost all the same."""

    stream: int
    request: int
    cost: Cost
    error: PacelineError


@dataclass(frozen=True, slots=True)
class Cancelled:
    stream: int
    requests: list[int]


@dataclass(frozen=True, slots=True)
class SpeculationUpdated:
    stream: int
    requests: list[int]
    decisions: list[SpeculationDecision]


@dataclass(frozen=True, slots=True)
class PolicySet:
    """A router's wishes for the target's steps; None leaves one as it is."""

    stream: int
    max_running_requests: int | None = None
    max_rows: int | None = None
    chunked_prefill_size: int | None = None
    join_rounds: bool | None = None


@dataclass(frozen=True, slots=True)
class DrainStarted:
    """New submissions go back from now on."""


@dataclass(frozen=True, slots=True)
class DrainEnded:
    """What still runs goes back, too."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The engine thread is to end."""


class LossReason(enum.Enum):
    """Why a draft's link stopped working."""

    UNREACHABLE = "unreachable"  # it does not answer, or the connection broke
    MISMATCH = "mismatch"  # it serves another head, or is another kind of service
    GARBAGE = "garbage"  # what it sent does not parse
    HUNG = "hung"  # connected, but no answer within the timeout


@dataclass(frozen=True, slots=True)
class LinkEpoch:
    """One connection to one draft: epochs count the connections of a link."""

    draft: str
    epoch: int


@dataclass(frozen=True, slots=True)
class LinkUp:
    at: LinkEpoch


@dataclass(frozen=True, slots=True)
class LinkDown:
    at: LinkEpoch
    reason: LossReason
    message: str


@dataclass(frozen=True, slots=True)
class LinkGone:
    """The link has given up; a new one is made once a request names the draft."""

    at: LinkEpoch


@dataclass(frozen=True, slots=True)
class TreesArrived:
    at: LinkEpoch
    sessions: list[int]
    trees: list[ArrivedTree]


class SessionCode(enum.Enum):
    """A draft's word on a session."""

    OK = "ok"
    LENGTH_DIFFERS = "length_differs"
    FULL = "full"
    UNKNOWN = "unknown"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class SessionAnswer:
    session: int
    code: SessionCode
    held_len: int
    round: int  # 0: the answer to an open


@dataclass(frozen=True, slots=True)
class SessionsAnswered:
    at: LinkEpoch
    answers: list[SessionAnswer]


@dataclass(frozen=True, slots=True)
class RowsSynced:
    """The answer to one Sync message."""

    at: LinkEpoch
    session: int
    code: SessionCode
    held_len: int


Event = (
    StreamOpened
    | StreamClosed
    | Submitted
    | Refused
    | Cancelled
    | SpeculationUpdated
    | PolicySet
    | DrainStarted
    | DrainEnded
    | Stopped
    | LinkUp
    | LinkDown
    | LinkGone
    | TreesArrived
    | SessionsAnswered
    | RowsSynced
)
