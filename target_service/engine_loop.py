"""EngineLoop: the decode loop. One turn: take events, schedule, step, commit, emit, ask the drafts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from target_service.committer import Committer
from target_service.deadline import StepTimes, TreeDeadline
from target_service.draft_asker import Asking, DraftAsker
from target_service.draft_desk import DraftDesk
from target_service.draft_orders import DraftOrders
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
from target_service.mailbox import Mailbox
from target_service.metrics import TargetMetrics
from target_service.reporter import DoneStep, Reporter, ReportParts, StepMarks
from target_service.request_desk import RequestDesk
from target_service.scheduler import Schedule, schedule
from target_service.speculation_stats import AcceptanceWindow
from target_service.step_plan import plan_step
from target_service.step_runner import StepRunner
from target_service.tree_wait import TreeWait

IDLE_WAIT_S = 1.0  # between looks at the drafts, at most
# Orders wait for the interpreter's lock while this thread puts a step's news together: 0.45 ms of a round of 10 ms, one
# H200 at the 8B shape. So the news waits until they have left.
HEAD_START_S = 0.0003

_FOR_THE_NEXT_STEP = (TreesArrived, RowsSynced)  # after these the drafts are asked no sooner than after that step


@dataclass(frozen=True, slots=True)
class LoopParts:
    """What the loop drives; the engine thread alone touches it once the loop runs."""

    runner: StepRunner
    requests: RequestDesk
    drafts: DraftDesk
    asker: DraftAsker
    times: StepTimes
    window: AcceptanceWindow
    deadline: TreeDeadline
    metrics: TargetMetrics


@dataclass(frozen=True, slots=True)
class Outlets:
    """Where things leave the loop. Neither call may block.

    send_orders: at once, for a draft's work waits for nothing else. Returns whether some are still to be sent, by
    another thread.
    """

    send_orders: Callable[[dict[str, DraftOrders]], bool]
    deliver: Callable[[Emission], None]  # while the next step runs


class EngineLoop:
    """Owns the model and all state of requests, on one thread. Events come by the mailbox, all else leaves by the
    outlets.

    Where the device computes on its own, what others are to know of a step is put together and delivered while the
    next one runs, or at once where none is due: between a result and the next launch there is only what these need.
    Where the loop's thread computes, it is delivered before the next step, and after the asks to drafts have left.
    """

    def __init__(
        self,
        parts: LoopParts,
        mailbox: Mailbox,
        outlets: Outlets,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parts = parts
        self._mailbox = mailbox
        self._send_orders = outlets.send_orders
        self._clock = clock
        self._committer = Committer(parts.requests, window=parts.window)
        self._reporter = Reporter(
            ReportParts(parts.requests, parts.drafts, parts.times, parts.window, parts.metrics), outlets.deliver
        )
        self._stopped = False
        self._step = 0
        self._has_asked = False  # since the last event that may make a request ask
        self._has_sent = False  # orders by the event loop, which needs the interpreter's lock for them
        self._is_idle = False  # the last turn ran no step
        self._waiting_since_s: float | None = None  # for trees alone
        self._tree_wait = TreeWait(parts.times)

    def run(self) -> None:
        """Turns until a Stopped event; then the other ranks end as well."""
        self._parts.runner.enter_thread()
        wait_s = 0.0
        while not self._stopped:
            wait_s = self.turn(wait_s)
        self._reporter.flush()
        self._parts.runner.stop()

    def turn(self, wait_s: float) -> float:
        """Waits at most wait_s for events and does at most one step. Returns how long the next turn may wait."""
        events = self._mailbox.take(wait_s)
        for event in events:
            self._apply(event)
            self._has_asked &= isinstance(event, _FOR_THE_NEXT_STEP)
        if self._is_idle and not events:  # time alone may let a draft be tried again
            self._has_asked = False
        now_s = self._clock()
        self._parts.drafts.check_hung(now_s)
        if not self._has_asked:
            self._ask_drafts(now_s)
        self._hand_over_orders()
        due = self._schedule(now_s)
        self._is_idle = due.is_empty
        if not due.is_empty:
            self._run_step(due, now_s)
            if self._has_sent and not self._parts.runner.is_asynchronous:
                self._has_sent = False
                return HEAD_START_S
            return 0.0
        self._hand_over_late()
        if self._has_sent and self._reporter.holds_step:
            self._has_sent = self._is_idle = False
            return HEAD_START_S
        self._reporter.flush_changes()
        if due.until_s is None:
            self._waiting_since_s = None
            return IDLE_WAIT_S
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s
        return min(max(due.until_s - now_s, 0.0), IDLE_WAIT_S)

    def _schedule(self, now_s: float) -> Schedule:
        requests, limits = self._parts.requests, self._parts.requests.limits
        if limits.join_rounds is None:
            limits = replace(limits, join_rounds=self._tree_wait.is_short)
        return schedule(requests.sequences.values(), limits, num_decoding=requests.num_decoding, now_s=now_s)

    def _run_step(self, due: Schedule, now_s: float) -> None:
        runner = self._parts.runner
        if not runner.is_asynchronous:  # the launch is the step itself
            self._reporter.flush()
        waited_s = 0.0 if self._waiting_since_s is None else now_s - self._waiting_since_s
        self._waiting_since_s = None
        if due.trees:
            self._tree_wait.observe(waited_s)
        self._step += 1
        planned = plan_step(due, self._parts.requests.table)
        planned_s = self._clock()
        pending = runner.launch(planned.plan, planned.sampling, num_feature_rows=planned.num_drafted_rows)
        self._hand_over_late()
        self._reporter.flush()
        self._has_sent = False
        sessions = [(0, 0) if seq.draft is None else (seq.draft.session, seq.draft.round) for seq in planned.seqs]
        result = pending.result()
        known_s = self._clock()
        committed = self._committer.commit(planned, result.walk, step=self._step)
        committed_s = self._clock()
        self._ask_drafts(committed_s)
        self._hand_over_orders()
        done = DoneStep(
            number=self._step,
            planned=planned,
            sessions=sessions,
            result=result,
            committed=committed,
            waited_s=waited_s,
            marks=StepMarks(now_s, planned_s, known_s, committed_s, self._clock()),
        )
        self._reporter.note(done)
        if not runner.is_asynchronous and not self._has_sent:
            self._hand_over_late()
            self._reporter.flush()

    def _ask_drafts(self, now_s: float) -> None:
        parts = self._parts
        self._has_asked = True
        if not parts.drafts.followed:
            return
        self._hand_over_late()
        num_decoding = parts.requests.num_decoding
        parts.asker.advance(Asking(now_s, self._step, parts.deadline.seconds(num_decoding), num_decoding))

    def _hand_over_orders(self) -> None:
        orders = self._parts.asker.take_orders()
        if orders:
            self._has_sent |= self._send_orders(orders)

    def _hand_over_late(self) -> None:
        """Rows that were read from the pool, when the device has something else to do."""
        orders = self._parts.asker.take_late_orders()
        if orders:
            self._send_orders(orders)

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
                requests.update_speculation(event)
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
