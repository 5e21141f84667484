"""StepRecord: one step as it went, for the metrics, the load figures and an operator's eyes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from draft_service.replies import TreeReplies
from draft_service.step_batch import NO_ROUND, StepBatch


@dataclass(frozen=True, slots=True, eq=False)
class StepPart:
    """What ran as one batch. ``page_ids`` are those of that time, as many as the rows and the trees' scratch need."""

    batch: StepBatch
    target: np.ndarray  # uint64 [b]: the sessions' incarnations
    page_ids: np.ndarray  # int32 [b, pages], those of each in order of position
    trees: TreeReplies
    grown_s: float  # on the engine's clock: the trees were on the host
    answered_s: float

    @property
    def is_answered(self) -> np.ndarray:
        """bool [b]: whether an ask of the session was."""
        return self.batch.round != NO_ROUND


@dataclass(frozen=True, slots=True)
class StepRecord:
    """parts: the rounds, then the bulk rows, as far as there were some."""

    step: int
    start_s: float  # on the engine's clock
    stop_s: float
    parts: tuple[StepPart, ...]
    timings_ms: dict[str, float]

    @property
    def has_answers(self) -> bool:
        """To rounds."""
        return any(part.is_answered.any() for part in self.parts)
