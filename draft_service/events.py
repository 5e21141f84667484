"""What reaches the engine thread: values that were checked at the edge."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from draft_service.step_batch import StepBatch
from paceline.rounds import RawTensor
from paceline.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Opening:
    """A session to open. max_len: tokens that the request may come to hold."""

    session: int
    max_len: int
    sampling: SamplingParams
    traceparent: str = ""  # of the target's span; "": not traced


@dataclass(frozen=True, slots=True)
class RoundMessage:
    """One message of a target's round stream."""

    stream: int
    target: int  # its incarnation
    openings: tuple[Opening, ...]
    extend: StepBatch | None  # its seats and arrival are the engine's to write; at least one session
    releases: tuple[int, ...]
    arrived_s: float  # on the engine's clock


@dataclass(frozen=True, slots=True)
class SyncMessage:
    """Bulk rows of one session: row i is position base_len + i."""

    target: int
    ticket: int  # names the answer
    session: int
    base_len: int
    tokens: np.ndarray  # int32 [rows]
    features: RawTensor  # [rows, feature_size]


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """A round stream ended: its sessions go."""

    stream: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Refuse new sessions from now on."""


Event = RoundMessage | SyncMessage | StreamEnd | Drain
