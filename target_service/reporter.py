"""Reporter: what the rest of the world is told of a step, put together while the next one may run already."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from target_service.committer import Committed
from target_service.deadline import StepTimes
from target_service.draft_desk import DraftDesk
from target_service.emission import Emission
from target_service.load import Load, StepFigures
from target_service.metrics import TargetMetrics
from target_service.request_desk import RequestDesk
from target_service.round_record import RoundRecord
from target_service.speculation_stats import AcceptanceWindow
from target_service.step_plan import PlannedStep
from target_service.step_runner import StepResult

# Trees of three levels are there 0.55 ms after the ask, one H200 at the 8B shape: news that is told meanwhile keeps the
# interpreter's lock from the thread that waits for them.
_LONGEST_HOLD_S = 0.002
_LAG_STEPS = 16  # between looks at how far the drafts are behind: a look costs a loop over the requests


@dataclass(frozen=True, slots=True)
class StepMarks:
    """When a step's parts were over: seconds of the loop's clock."""

    began_s: float
    planned_s: float
    known_s: float  # its result
    committed_s: float
    asked_s: float  # the drafts, for the next round
    free_s: float  # when it began, or the step before was over, whichever is later
    over_s: float  # known_s where the next one was launched already, else committed_s

    @property
    def step_ms(self) -> float:
        """The step as a whole, less what it shared with the one before."""
        return (self.over_s - self.free_s) * 1e3


@dataclass(frozen=True, slots=True)
class DoneStep:
    """A step that was committed, and of which nobody else has heard yet."""

    number: int
    planned: PlannedStep
    sessions: list[tuple[int, int]]  # session and round of each tree of the plan
    result: StepResult
    committed: Committed
    waited_s: float  # before the step, for trees alone
    turnaround_s: float  # from the ask for a tree of it until that was there, the longest
    is_alone: bool  # no other step was under way at the same time
    marks: StepMarks


@dataclass(frozen=True, slots=True)
class ReportParts:
    """Where the figures come from and go to."""

    requests: RequestDesk
    drafts: DraftDesk
    times: StepTimes
    window: AcceptanceWindow
    metrics: TargetMetrics


class Reporter:
    """Engine thread only. Holds at most one step; ``flush`` gives it to ``deliver``, which must not block."""

    def __init__(self, parts: ReportParts, deliver: Callable[[Emission], None] | None) -> None:
        """deliver: None: nobody is told."""
        self._parts = parts
        self._deliver = deliver
        self._step = 0
        self._done: DoneStep | None = None
        self._reported: tuple[object, ...] = ()  # what the last load said of requests, pages and links

    def note(self, done: DoneStep) -> None:
        """To be told by the next ``flush``, with all that the requests' desk has gathered by then."""
        assert self._done is None, "a step was never told of"
        if self._deliver is not None:
            self._done = done

    @property
    def holds_step(self) -> bool:
        """Whether a step was noted and not told of."""
        return self._done is not None

    def hold_s(self, now_s: float) -> float:
        """How long the step that was noted may still wait for a launch; 0 where it may not, for it has somebody's first
        token or end, or other news of requests is to be told, or where none is held."""
        done = self._done
        if done is None or done.planned.num_chunk_tokens or done.committed.ended or self._parts.requests.has_news:
            return 0.0
        return max(0.0, done.marks.asked_s + _LONGEST_HOLD_S - now_s)

    def flush(self) -> None:
        """Tells of the step that was noted, if there is one."""
        done, self._done = self._done, None
        if done is None:
            return
        self._step = done.number
        plan, marks = done.planned.plan, done.marks
        done.committed.news.tell(self._parts.requests)
        if done.is_alone and not done.planned.num_chunk_tokens:
            self._parts.times.observe(plan.num_rows, marks.step_ms)
        num_decoding = done.planned.num_decoding
        roots = plan.trees.node_indptr[: num_decoding + 1]
        num_nodes = np.diff(roots)
        figures = StepFigures(
            rows=plan.num_rows,
            prefill_tokens=done.planned.num_chunk_tokens,
            step_ms=marks.step_ms,
            forward_ms=done.result.forward_ms,
            tree_wait_ms=done.waited_s * 1e3,
            tree_turnaround_ms=done.turnaround_s * 1e3,
            context_tokens=int(plan.trees.positions[roots[:-1]].sum()),
            verified_requests=num_decoding,
            drafted_requests=int((num_nodes > 1).sum()),
        )
        metrics = self._parts.metrics
        metrics.step(figures, emitted_tokens=done.committed.news.num_tokens)
        if not done.is_alone:
            metrics.overlapped_step()
        metrics.rounds(num_nodes, done.result.walk.accept_length[:num_decoding], num_late=len(done.planned.late))
        self._emit(self._load(figures), _record(done))

    def flush_changes(self) -> None:
        """Between two steps: cancels, a stream's end and a drain change the load while nothing is due."""
        self.flush()
        if self._deliver is None:
            return
        load = None if self._reported == self._held() else self._load(StepFigures())
        requests = self._parts.requests
        if load is not None or requests.has_news or requests.drained:
            self._emit(load, None)

    def _emit(self, load: Load | None, record: RoundRecord | None) -> None:
        assert self._deliver is not None
        emission = self._parts.requests.take_emission(to_all=load is not None)
        for batch in emission.streams.values():
            batch.step = self._step
            batch.load = load
        emission.load = load
        emission.round = record
        self._deliver(emission)

    def _held(self) -> tuple[object, ...]:
        requests = self._parts.requests
        links = [(load.draft, load.connected) for load in self._parts.drafts.loads()]
        return len(requests.sequences), requests.num_free_pages, requests.draining, links

    def _load(self, figures: StepFigures) -> Load:
        self._reported = self._held()
        requests, window = self._parts.requests, self._parts.window
        if not figures.rows or self._step % _LAG_STEPS == 0:
            self._parts.metrics.sync_lag(self._parts.drafts.sync_lag())
        num_decoding = requests.num_decoding
        load = Load(
            running_requests=num_decoding,
            prefilling_requests=len(requests.sequences) - num_decoding,
            max_running_requests=requests.max_running_requests,
            free_slots=requests.credits.free_slots,
            free_pages=requests.num_free_pages,
            num_pages=requests.num_pages,
            step=figures,
            mean_accepted_length=window.mean_accepted_length(),
            accepted_by_depth=window.accepted_by_depth(),
            draining=requests.draining,
            drafts=self._parts.drafts.loads(),
        )
        self._parts.metrics.load(load)
        return load


def _record(done: DoneStep) -> RoundRecord:
    marks, result = done.marks, done.result
    launched_s = max(marks.planned_s, marks.free_s)
    return RoundRecord(
        step=done.number,
        time_s=time.time(),
        plan=done.planned.plan,
        num_decoding=done.planned.num_decoding,
        walk=result.walk,
        sessions=done.sessions,
        ended=done.committed.ended,
        timings_ms={
            "wait": done.waited_s * 1e3,
            "plan": (marks.planned_s - marks.began_s) * 1e3,
            "forward": result.forward_ms,
            "sample": result.sample_ms,
            "host": max(0.0, (marks.known_s - launched_s) * 1e3 - result.forward_ms - result.sample_ms),
            "commit": (marks.committed_s - marks.known_s) * 1e3,
            "extend": (marks.asked_s - marks.committed_s) * 1e3,
        },
    )
