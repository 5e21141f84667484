"""Emission: what the engine thread hands to the event loop, once a turn. Values only."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from paceline.errors import PacelineError
from paceline.stats import SpeculationStats
from paceline.types import FinishReason
from target_service.credits import Grant
from target_service.load import Load
from target_service.round_columns import RoundColumns
from target_service.round_record import RoundRecord
from target_service.token_columns import TokenColumns


class ReturnReason(enum.Enum):
    """Why a submission goes back to its router."""

    NO_CREDIT = "no_credit"
    PREEMPTED = "preempted"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Finished:
    request: int
    reason: FinishReason
    stats: SpeculationStats | None
    error: PacelineError | None = None  # with FinishReason.ERROR


@dataclass(frozen=True, slots=True)
class Returned:
    request: int
    reason: ReturnReason
    stats: SpeculationStats | None


@dataclass(slots=True)
class StreamBatch:
    """One router's part of one or more steps."""

    step: int = 0
    deltas: list[TokenColumns] = field(default_factory=list)  # of one step each, in order
    finishes: list[Finished] = field(default_factory=list)
    returns: list[Returned] = field(default_factory=list)
    rounds: list[RoundColumns] = field(default_factory=list)  # of one step each, in order
    credits: Grant | None = None
    load: Load | None = None

    def merge(self, later: StreamBatch) -> None:
        """Takes in the batch of later steps: tokens and ends are appended, counts replaced."""
        self.step = later.step
        self.deltas += later.deltas
        self.finishes += later.finishes
        self.returns += later.returns
        self.rounds += later.rounds
        self.credits = later.credits or self.credits
        self.load = later.load or self.load


@dataclass(slots=True)
class Emission:
    """All that one turn of the decode loop gives to others but the drafts."""

    streams: dict[int, StreamBatch] = field(default_factory=dict)
    load: Load | None = None
    round: RoundRecord | None = None
    drained: bool = False  # the target takes no more requests, and none is left
