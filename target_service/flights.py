"""Flights: the steps that were launched and are not known yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from paceline.types import TreeShape
from target_service.scheduler import Schedule
from target_service.sequence import Sequence
from target_service.sequence_table import SequenceTable
from target_service.step_plan import PlannedStep, plan_step
from target_service.step_runner import MAX_IN_FLIGHT, PendingStep, StepResult, StepRunner


@dataclass(slots=True)
class Flight:
    """One launched step. Times in seconds of the loop's clock."""

    number: int
    planned: PlannedStep
    pending: PendingStep
    began_s: float
    planned_s: float
    waited_s: float  # before it, for trees alone
    is_queued: bool  # another was under way at its launch
    sessions: list[tuple[int, int]]  # session and round of each tree of the plan
    shapes: list[TreeShape | None]  # that the plan's first num_speculating requests were asking for
    turnaround_s: float  # from the ask for a tree of it until that was there, the longest; 0 without any
    is_followed: bool = False  # another was launched before it was over
    known_s: float = 0.0

    @property
    def seqs(self) -> list[Sequence]:
        """All that take part: trees, and prompts that end or go on."""
        return [*self.planned.seqs, *(turn.seq for turn in self.planned.due.chunks)]


class Flights:
    """First launched, first known. Engine thread only.

    A request that takes part is marked until its step is known: it is in no other, nobody asks a draft for it, and
    what ends requests waits.
    """

    def __init__(self, runner: StepRunner, table: SequenceTable, *, clock: Callable[[], float]) -> None:
        self._runner = runner
        self._table = table
        self._clock = clock
        self._flights: deque[Flight] = deque()
        self._number = 0

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def is_full(self) -> bool:
        return len(self._flights) == MAX_IN_FLIGHT

    def is_over(self) -> bool:
        """Whether ``land`` would not wait. At least one is under way."""
        return self._flights[0].pending.is_over()

    def launch(self, due: Schedule, *, began_s: float, waited_s: float) -> None:
        """MUTATES requests and table, as ``plan_step`` does. began_s: when it was looked for."""
        self._number += 1
        planned = plan_step(due, self._table)
        planned_s = self._clock()
        pending = self._runner.launch(planned.plan, planned.sampling, num_feature_rows=planned.num_drafted_rows)
        speculating = planned.seqs[: planned.num_speculating]
        flight = Flight(
            number=self._number,
            planned=planned,
            pending=pending,
            began_s=began_s,
            planned_s=planned_s,
            waited_s=waited_s,
            is_queued=len(self._flights) > 0,
            sessions=[(0, 0) if seq.draft is None else (seq.draft.session, seq.draft.round) for seq in planned.seqs],
            shapes=[None if seq.draft is None else seq.draft.shape for seq in speculating],
            turnaround_s=_turnaround_s(due),
        )
        for seq in flight.seqs:
            seq.is_running = True
        if self._flights:
            self._flights[-1].is_followed = True
        self._flights.append(flight)

    def land(self) -> tuple[Flight, StepResult]:
        """Waits for the step that was launched first."""
        flight = self._flights.popleft()
        result = flight.pending.result()
        flight.known_s = self._clock()
        for seq in flight.seqs:
            seq.is_running = False
        return flight, result


def _turnaround_s(due: Schedule) -> float:
    """Of the tree that took longest: they may have been asked for at different times."""
    sessions = (turn.seq.draft for turn in due.trees)
    return max((draft.answered_at_s - draft.asked_at_s for draft in sessions if draft is not None), default=0.0)
