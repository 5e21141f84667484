"""Flights: the steps that were launched and are not known yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from kernels.ops import TreeBatch, WalkResult
from paceline.types import TreeShape
from target_service.scheduler import Schedule
from target_service.sequence import Sequence
from target_service.sequence_table import SequenceTable
from target_service.step_plan import PlannedStep, plan_step
from target_service.step_roots import StepRoots, find_roots
from target_service.step_runner import MAX_IN_FLIGHT, PendingStep, StepRunner


@dataclass(slots=True)
class Flight:
    """One launched step. Times in seconds of the loop's clock."""

    number: int
    planned: PlannedStep
    pending: PendingStep
    began_s: float
    planned_s: float
    waited_s: float  # before it, for trees alone
    is_queued: bool  # another, of other requests, was under way at its launch
    sessions: list[tuple[int, int]]  # session and round of each tree of the plan
    shapes: list[TreeShape | None]  # that the plan's first num_speculating requests were asking for
    seqs: list[Sequence]  # all that take part: trees, and prompts that end or go on
    roots: StepRoots
    turnaround_s: float  # from the ask for a tree of it until that was there, the longest; 0 without any
    is_plain: bool  # see PlannedStep
    is_followed: bool = False  # another such one was launched before it was over
    known_s: float = 0.0


class Flights:
    """First launched, first known. Engine thread only.

    A request that takes part is marked until its step is known: nobody asks a draft for it, and what comes from outside
    and ends requests waits. It is in no other step but one that was scheduled ahead; where it ends with the first, the
    second writes to pages that are free by then, before any step that is launched later, and is cut.
    """

    def __init__(self, runner: StepRunner, table: SequenceTable, *, clock: Callable[[], float]) -> None:
        self._runner = runner
        self._table = table
        self._clock = clock
        self._flights: deque[Flight] = deque()
        self._number = 0
        self.count = 0  # steps under way

    @property
    def may_run_ahead(self) -> bool:
        """One step is under way, and its requests may go on behind it."""
        return self.count == 1 and self._flights[0].is_plain

    @property
    def has_trees(self) -> bool:
        """The first one under way verifies drafts' trees."""
        return bool(self._flights[0].planned.due.trees)

    @property
    def num_rows(self) -> int:
        """Of the first one under way."""
        return self._flights[0].planned.plan.num_rows

    @property
    def launched_s(self) -> float:
        """When the first one under way was launched."""
        return self._flights[0].planned_s

    @property
    def is_full(self) -> bool:
        return self.count == MAX_IN_FLIGHT

    def is_over(self) -> bool:
        """Whether ``land`` would not wait. At least one is under way."""
        return self._flights[0].pending.is_over()

    def launch(self, due: Schedule, *, began_s: float, waited_s: float) -> None:
        """MUTATES requests and table, as ``plan_step`` does. began_s: when it was looked for."""
        self._number += 1
        planned = plan_step(due, self._table)
        planned_s = self._clock()
        behind = self._flights[-1] if self._flights else None
        pending = self._runner.launch(
            planned.plan,
            planned.sampling,
            num_feature_rows=planned.num_drafted_rows,
            behind=behind.pending if behind is not None and due.is_ahead else None,
        )
        is_beside = behind is not None and not due.is_ahead
        speculating = planned.seqs[: planned.num_speculating]
        flight = Flight(
            number=self._number,
            planned=planned,
            pending=pending,
            began_s=began_s,
            planned_s=planned_s,
            waited_s=waited_s,
            is_queued=is_beside,
            sessions=[(0, 0) if seq.draft is None else (seq.draft.session, seq.draft.round) for seq in planned.seqs],
            shapes=[None if seq.draft is None else seq.draft.shape for seq in speculating],
            seqs=planned.seqs + [chunk.seq for chunk in due.chunks],
            roots=find_roots(planned),
            turnaround_s=_turnaround_s(due),
            is_plain=planned.is_plain,
        )
        for number, seq in enumerate(speculating):
            seq.drafted_step, seq.drafted_tree = self._number, number
        for seq in flight.seqs:
            seq.is_running = True
        if behind is None:
            self._mark(flight)
        elif is_beside:
            behind.is_followed = True
        self._flights.append(flight)
        self.count += 1

    def land(self) -> tuple[Flight, WalkResult]:
        """Waits for the step that was launched first. Of a step ahead, what requests have that ended before is cut."""
        flight = self._flights.popleft()
        self.count -= 1
        walk = flight.pending.walk()
        flight.known_s = self._clock()
        seqs = flight.seqs
        for seq in seqs:
            seq.is_running = seq.is_ahead = False
        if flight.is_plain:
            self._table.clear_pending(np.array([seq.row for seq in seqs if not seq.is_closed], np.int64))
        if self._flights:
            self._mark(self._flights[0])
            landed = set(map(id, seqs))
            for seq in self._flights[0].seqs:
                seq.is_running = True
                seq.is_ahead = id(seq) in landed
        if flight.planned.due.is_ahead:
            walk = _settle(flight, walk, self._table)
        return flight, walk

    def expect_again(self, flight: Flight) -> None:
        """Made ready for the next step, which is the more likely of the same requests and sizes as the one that landed
        where all of them go on, and nothing else is under way."""
        planned = flight.planned
        if not self.count and planned.due.drafted and not planned.due.chunks:
            self._table.lay_out(planned.rows, planned.plan.attention.local_len)

    def _mark(self, flight: Flight) -> None:
        """What the step brings, for one that is planned behind it."""
        if not flight.is_plain:
            return
        planned = flight.planned
        table, rows = self._table, planned.rows
        table.pending_len[rows[: planned.num_decoding]] = 1
        table.pending_tree[rows] = np.arange(len(rows))
        for chunk in planned.due.chunks:
            table.pending_len[chunk.seq.row] = chunk.stop - chunk.start


def _settle(flight: Flight, walk: WalkResult, table: SequenceTable) -> WalkResult:
    """MUTATES the flight: of its trees, one node each, those remain whose requests did, and their tokens are known."""
    planned = flight.planned
    kept = np.array([number for number, seq in enumerate(planned.seqs) if not seq.is_closed], np.int64)
    trees, rows, num_kept = planned.plan.trees, planned.rows[kept], len(kept)
    positions = trees.positions[kept]
    none = np.full(num_kept, -1, np.int32)
    plan = replace(
        planned.plan,
        logit_rows=planned.plan.logit_rows[kept],
        trees=TreeBatch(
            node_indptr=np.arange(num_kept + 1, dtype=np.int32),
            tokens=table.tokens[rows, positions],
            positions=positions,
            first_child=none,
            next_sibling=none,
        ),
    )
    flight.planned = planned._replace(
        plan=plan,
        seqs=[planned.seqs[number] for number in kept],
        heads=planned.heads.take(kept, axis=1),
        num_decoding=int((kept < planned.num_decoding).sum()),
    )
    flight.roots = find_roots(flight.planned)
    flight.sessions = [flight.sessions[number] for number in kept]
    return WalkResult(walk.accept_length[kept], np.arange(num_kept, dtype=np.int32), walk.verified_id[kept])


def _turnaround_s(due: Schedule) -> float:
    """Of the tree that took longest: they may have been asked for at different times."""
    sessions = [seq.draft for seq in due.drafted]
    return max([draft.answered_at_s - draft.asked_at_s for draft in sessions if draft is not None], default=0.0)
