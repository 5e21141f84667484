"""EngineLoop: the decode loop. One turn: take events, schedule, step, commit, emit, ask the drafts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from target_service.committer import Committer
from target_service.deadline import StepTimes, TreeDeadline
from target_service.draft_desk import Asking, DraftDesk
from target_service.emission import Emission, ReturnReason
from target_service.events import (
    Cancelled,
    DrainEnded,
    DrainStarted,
    Event,
    LinkDown,
    LinkGone,
    LinkUp,
    PolicySet,
    Refused,
    RowsSynced,
    SessionsAnswered,
    SpeculationUpdated,
    Stopped,
    StreamClosed,
    StreamOpened,
    Submitted,
    TreesArrived,
)
from target_service.load import Load, StepFigures
from target_service.mailbox import Mailbox
from target_service.metrics import TargetMetrics
from target_service.request_desk import RequestDesk
from target_service.round_record import RoundRecord
from target_service.scheduler import Schedule, schedule
from target_service.sequence import Phase
from target_service.speculation_stats import AcceptanceWindow
from target_service.step_plan import plan_step
from target_service.step_runner import StepRunner

IDLE_WAIT_S = 1.0  # between looks at the drafts, at most
KEEP_ALIVE_S = 3600.0  # between steps, at most: the other ranks wait for days, not for ever


@dataclass(frozen=True, slots=True)
class LoopParts:
    """What the loop drives; the engine thread alone touches it once the loop runs."""

    runner: StepRunner
    requests: RequestDesk
    drafts: DraftDesk
    times: StepTimes
    window: AcceptanceWindow
    deadline: TreeDeadline
    metrics: TargetMetrics


class EngineLoop:
    """Owns the model and all state of requests, on one thread. Events come by the mailbox; what others are to know
    leaves through ``deliver``, which must not block."""

    def __init__(
        self,
        parts: LoopParts,
        mailbox: Mailbox,
        deliver: Callable[[Emission], None],
        *,
        page_size: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parts = parts
        self._mailbox = mailbox
        self._deliver = deliver
        self._page_size = page_size
        self._clock = clock
        self._committer = Committer(parts.requests, window=parts.window, metrics=parts.metrics)
        self._stopped = False
        self._step = 0
        self._stepped_at_s = clock()
        self._reported: tuple[int, ...] = ()  # what the last load said of requests and pages
        self._waiting_since_s: float | None = None  # for trees alone

    def run(self) -> None:
        """Turns until a Stopped event; then the other ranks end as well."""
        wait_s = 0.0
        while not self._stopped:
            wait_s = self.turn(wait_s)
        self._parts.runner.stop()

    def turn(self, wait_s: float) -> float:
        """Waits at most wait_s for events and does at most one step. Returns how long the next turn may wait."""
        for event in self._mailbox.take(wait_s):
            self._apply(event)
        now_s = self._clock()
        self._parts.drafts.check_hung(now_s)
        self._ask_drafts(now_s)
        due = self._schedule(now_s)
        if not due.is_empty:
            self._run_step(due, now_s)
            return 0.0
        self._emit(load=self._changed_load(), record=None)
        if now_s - self._stepped_at_s >= KEEP_ALIVE_S:
            self._stepped_at_s = now_s
            self._parts.runner.keep_alive()
        if due.until_s is None:
            self._waiting_since_s = None
            return IDLE_WAIT_S
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s
        return min(max(due.until_s - now_s, 0.0), IDLE_WAIT_S)

    def _schedule(self, now_s: float) -> Schedule:
        requests = self._parts.requests
        return schedule(requests.sequences.values(), requests.limits, num_decoding=self._num_decoding(), now_s=now_s)

    def _run_step(self, due: Schedule, now_s: float) -> None:
        parts = self._parts
        waited_s = 0.0 if self._waiting_since_s is None else now_s - self._waiting_since_s
        self._waiting_since_s = None
        self._step += 1
        self._stepped_at_s = now_s
        planned = plan_step(due, page_size=self._page_size)
        sessions = [(0, 0) if seq.draft is None else (seq.draft.session, seq.draft.round) for seq in planned.sampled]
        planned_s = self._clock()
        result = parts.runner.run(planned.plan, planned.params)
        sampled_s = self._clock()
        num_emitted = self._committer.commit(planned, due.chunks, result.walk, step=self._step)
        committed_s = self._clock()
        self._ask_drafts(committed_s)
        extended_s = self._clock()
        if not due.chunks:
            parts.times.observe(planned.plan.num_rows, (extended_s - now_s) * 1e3)
        figures = StepFigures(
            rows=planned.plan.num_rows,
            prefill_tokens=sum(chunk.stop - chunk.start for chunk in due.chunks),
            step_ms=(extended_s - now_s) * 1e3,
            forward_ms=result.forward_ms,
            tree_wait_ms=waited_s * 1e3,
        )
        parts.metrics.step(figures, emitted_tokens=num_emitted)
        record = RoundRecord(
            step=self._step,
            time_s=time.time(),
            plan=planned.plan,
            walk=result.walk,
            sessions=sessions,
            goes_on=[seq.is_open for seq in planned.sampled],
            timings_ms={
                "plan": (planned_s - now_s) * 1e3,
                "forward": result.forward_ms,
                "sample": result.sample_ms,
                "commit": (committed_s - sampled_s) * 1e3,
                "extend": (extended_s - committed_s) * 1e3,
            },
        )
        self._emit(load=self._load(figures), record=record)

    def _ask_drafts(self, now_s: float) -> None:
        num_decoding = self._num_decoding()
        asking = Asking(now_s, self._parts.deadline.seconds(num_decoding), num_decoding)
        self._parts.drafts.advance(self._parts.requests.sequences.values(), asking)

    def _num_decoding(self) -> int:
        """Requests past their prompt: prompts do not count as decode load, or the ladder would flap."""
        return sum(seq.phase is Phase.DECODE for seq in self._parts.requests.sequences.values())

    def _emit(self, *, load: Load | None, record: RoundRecord | None) -> None:
        requests, drafts = self._parts.requests, self._parts.drafts
        orders = drafts.take_orders()
        if load is None and not orders and not requests.has_news and not requests.drained:
            return
        emission = requests.take_emission(to_all=load is not None)
        for batch in emission.streams.values():
            batch.step = self._step
            batch.load = load
        emission.orders = orders
        emission.load = load
        emission.round = record
        self._deliver(emission)

    def _changed_load(self) -> Load | None:
        """What no step reports: cancels, a stream's end and a drain change the load while nothing is due."""
        return None if self._reported == self._held() else self._load(StepFigures())

    def _held(self) -> tuple[int, ...]:
        requests = self._parts.requests
        return len(requests.sequences), requests.num_free_pages, requests.draining

    def _load(self, figures: StepFigures) -> Load:
        self._reported = self._held()
        requests, window = self._parts.requests, self._parts.window
        num_decoding = self._num_decoding()
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

    def _apply(self, event: Event) -> None:
        requests, drafts = self._parts.requests, self._parts.drafts
        now_s = self._clock()
        match event:
            case Submitted():
                for request in event.requests:
                    requests.submit(request)
            case TreesArrived():
                drafts.on_trees(event, now_s)
            case SessionsAnswered():
                drafts.on_answers(event, now_s)
            case RowsSynced():
                drafts.on_synced(event, now_s)
            case Cancelled():
                requests.cancel(event)
            case SpeculationUpdated():
                requests.update_speculation(event, now_s)
            case PolicySet():
                requests.set_policy(event)
            case Refused():
                requests.refuse(event)
            case StreamOpened():
                requests.open_stream(event.stream)
            case StreamClosed():
                requests.close_stream(event.stream)
            case LinkUp():
                drafts.on_link_up(event, now_s)
            case LinkDown():
                drafts.on_link_down(event)
            case LinkGone():
                drafts.on_link_gone(event)
            case DrainStarted():
                requests.draining = True
            case DrainEnded():
                requests.return_all(ReturnReason.DRAINING)
            case Stopped():
                self._stopped = True
