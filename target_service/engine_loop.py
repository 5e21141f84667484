"""EngineLoop: the decode loop. One turn: take events, schedule, step, commit, emit, ask the drafts."""

from __future__ import annotations

import time
from collections.abc import Callable

from paceline.mailbox import Mailbox
from target_service.committer import Committer
from target_service.draft_calls import DraftCalls
from target_service.events import Event
from target_service.flights import Flights
from target_service.halves import SteppedTrees
from target_service.inbox import Inbox
from target_service.loop_parts import LoopParts, Outlets
from target_service.rehearsal_time import RehearsalTime
from target_service.reporter import DoneStep, Reporter, ReportParts, StepMarks
from target_service.scheduler import Moment, Schedule, nothing, schedule, schedule_ahead
from target_service.tree_wait import TreeWait

IDLE_WAIT_S = 1.0  # between looks at the drafts, at most
BUSY_WAIT_S = 0.0002  # between looks at a step under way, while the other half's trees may come
# Orders wait for the interpreter's lock while this thread puts a step's news together: 0.45 ms of a round of 10 ms, one
# H200 at the 8B shape. So the news waits until they have left.
HEAD_START_S = 0.0003
LONGEST_LOOK_S = 0.001  # between looks at a step under way that may be over sooner than expected
# A step is launched so long before the one before it is expected to be over: launches, and the error of the guess.
_LEAD = 2.0
_LEAD_S = 0.0003
_SMOOTHING = 0.1


class EngineLoop:
    """Owns the model and all state of requests, on one thread. Events come by the mailbox, all else leaves by the
    outlets.

    Where the device computes on its own, what others are to know of a step is put together and delivered while the
    next one runs, which may wait 2 ms for its trees, or at once where none is due: between a result and the next launch
    there is only what these need. Where rounds are split in halves, the step of one is launched behind that of the
    other, so that the device has no rest at all. Where no decoding request speculates, each step is launched behind the
    one before: shortly before that is over, so that a prompt that comes meanwhile does not miss it. Where the loop's
    thread computes, a step's news is delivered before the next step, and after the asks to drafts have left.
    """

    def __init__(
        self,
        parts: LoopParts,
        mailbox: Mailbox[Event],
        outlets: Outlets,
        *,
        rehearsals: RehearsalTime | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parts = parts
        self._clock = clock
        self._inbox = Inbox(mailbox, parts, clock=clock)
        self._flights = Flights(parts.runner, parts.requests.table, clock=clock)
        self._rehearsals = rehearsals
        self._calls = DraftCalls(parts, outlets.send_orders)
        self._committer = Committer(parts.requests, window=parts.window)
        self._reporter = Reporter(
            ReportParts(parts.requests, parts.drafts, parts.times, parts.window, parts.metrics), outlets.deliver
        )
        self._over_s = 0.0  # when it was over
        self._has_looked = False  # for a step to launch behind the one under way, since anything changed
        self._due = nothing()  # the last look's
        self._is_idle = False  # the last turn ran no step
        self._waiting_since_s: float | None = None  # for trees alone
        self._tree_wait = TreeWait(parts.times)
        self._launching_s = 0.001  # planning and launching a step; averaged
        self._pace = 1.0  # of the device in plain steps, prompts' too, over the warm-up; averaged

    def run(self) -> None:
        """Turns until a Stopped event; then the other ranks end as well."""
        with self._parts.runner.thread():
            wait_s = 0.0
            while not self._inbox.stopped:
                wait_s = self.turn(wait_s)
            self._reporter.flush()
            self._parts.runner.stop()

    def turn(self, wait_s: float) -> float:
        """Waits at most wait_s for events, launches what is due, and lands at most one step. Returns how long the next
        turn may wait."""
        events = self._inbox.take(wait_s, is_busy=self._flights.count > 0)
        self._calls.note(events, is_idle=self._is_idle)
        now_s = self._clock()
        self._parts.drafts.check_hung(now_s)
        self._calls.catch_up(now_s)
        self._has_looked &= not events
        while self._may_launch:
            self._due = self._schedule(now_s)
            self._has_looked = self._flights.count > 0
            if self._due.is_empty:
                break
            self._launch(self._due, now_s)
            now_s = self._clock()
        self._is_idle = not self._flights.count
        return self._rest(now_s) if self._is_idle else self._fly()

    @property
    def _may_launch(self) -> bool:
        """Behind a step under way one that has trees of the other half, or the next tokens of the same requests, and
        nothing while something waits for the end of both."""
        if self._inbox.is_holding:
            return False
        if not self._flights.count:
            return True
        if self._flights.is_full or self._has_looked:
            return False
        if self._may_run_ahead:
            return self._clock() >= self._follow_s or self._flights.is_over()
        return self._parts.halves.is_split

    @property
    def _may_run_ahead(self) -> bool:
        return self._parts.runs_ahead and self._parts.runner.is_asynchronous and self._flights.may_run_ahead

    @property
    def _follow_s(self) -> float:
        """When the step behind the one under way is to be launched, for it to be there when that is over."""
        began_s = max(self._flights.launched_s, self._over_s)
        step_s = self._pace * self._parts.times.at_warm_up(self._flights.num_rows) / 1e3
        return began_s + step_s - _LEAD * self._launching_s - _LEAD_S

    def _schedule(self, now_s: float) -> Schedule:
        requests = self._parts.requests
        is_split, is_busy = self._parts.halves.is_split, self._flights.count > 0
        moment = Moment(now_s, requests.num_decoding, self._joins_rounds, is_split, is_busy)
        if self._flights.count and self._may_run_ahead:
            due = schedule_ahead(requests.sequences.values(), requests.limits, moment)
            if not due.is_empty or not moment.is_split:
                return due
        return schedule(requests.sequences.values(), requests.limits, moment)

    def _joins_rounds(self) -> bool:
        joins = self._parts.requests.join_rounds
        return self._tree_wait.is_short if joins is None else joins

    def _launch(self, due: Schedule, now_s: float) -> None:
        if not self._parts.runner.is_asynchronous:  # the launch is the step itself
            self._reporter.flush()
        waited_s = 0.0 if self._waiting_since_s is None else now_s - self._waiting_since_s
        self._waiting_since_s = None
        self._flights.launch(due, began_s=now_s, waited_s=waited_s)
        if due.drafted:
            self._tree_wait.observe(waited_s)
        self._launching_s += _SMOOTHING * (self._clock() - now_s - self._launching_s)
        self._tell()

    def _fly(self) -> float:
        """A step is under way."""
        expects_trees = self._has_looked and not self._flights.is_full and self._due.until_s is not None
        if expects_trees and not self._inbox.is_holding and not self._flights.is_over():
            self._tell()
            return BUSY_WAIT_S
        if self._waits_to_follow:
            self._tell()
            return min(max(0.0, self._follow_s - self._clock()), LONGEST_LOOK_S)
        if self._rehearsals is not None:
            self._rehearsals.spend(self._flights)
        self._land()
        if self._parts.runner.is_asynchronous and not self._flights.count:
            return 0.0
        if self._calls.has_sent:
            self._calls.has_sent = False
            return HEAD_START_S
        self._tell()
        return 0.0

    @property
    def _waits_to_follow(self) -> bool:
        """The step behind the one under way is still to be looked for."""
        is_open = self._may_run_ahead and not self._has_looked and not self._inbox.is_holding
        return is_open and not self._flights.is_over()

    def _rest(self, now_s: float) -> float:
        """No step is due, or under way."""
        self._calls.hand_over_late()
        self._parts.answers.count_trees()
        if self._calls.has_sent and self._reporter.holds_step:
            self._calls.has_sent = self._is_idle = False
            return HEAD_START_S
        until_s = self._due.until_s
        hold_s = self._reporter.hold_s(now_s) if until_s is not None and self._parts.runner.is_asynchronous else 0.0
        self._is_idle = not hold_s
        if self._is_idle:
            self._reporter.flush_changes()
        if until_s is None:
            self._waiting_since_s = None
            return IDLE_WAIT_S
        self._waiting_since_s = self._waiting_since_s or self._calls.asked_s
        return min(max(until_s - now_s, 0.0), hold_s or IDLE_WAIT_S)

    def _land(self) -> None:
        """The first step under way becomes known: it is committed, and the drafts are asked for what follows."""
        flight, walk = self._flights.land()
        self._has_looked = False
        decided = self._committer.commit(flight, walk)
        if not self._parts.drafts.followed:
            self._committer.account(decided)
        committed_s = self._clock()
        self._calls.ask(committed_s, decided.paths)
        asked_s = self._clock()
        result = flight.pending.result(walk)
        device_ms = result.forward_ms + result.sample_ms
        if flight.is_plain:
            pace = device_ms / self._parts.times.at_warm_up(flight.planned.plan.num_rows)
            self._pace += _SMOOTHING * (pace - self._pace)
        if self._rehearsals is not None:
            self._rehearsals.observe(flight)
        committed = self._committer.account(decided)
        if not committed.ended:
            self._flights.expect_again(flight)
        self._parts.answers.count_trees()
        free_s = max(flight.began_s, self._over_s)
        self._over_s = flight.known_s if self._flights.count else committed_s
        done = DoneStep(
            number=flight.number,
            planned=flight.planned,
            sessions=flight.sessions,
            result=result,
            committed=committed,
            waited_s=flight.waited_s,
            turnaround_s=flight.turnaround_s,
            is_alone=not (flight.is_queued or flight.is_followed),
            marks=StepMarks(
                flight.began_s, flight.planned_s, flight.known_s, committed_s, asked_s, free_s, self._over_s
            ),
        )
        self._reporter.flush()
        self._reporter.note(done)
        self._parts.halves.observe(
            SteppedTrees(
                requests=self._parts.requests.num_decoding,
                rows=flight.planned.plan.num_rows,
                prompt_tokens=flight.planned.num_chunk_tokens,
                trees=len(flight.planned.due.trees),
                nodes=flight.planned.num_tree_nodes,
                device_ms=device_ms,
                spent_ms=done.marks.step_ms + 1e3 * flight.waited_s,
                over_s=self._over_s,
            )
        )

    def _tell(self) -> None:
        """While the device works."""
        self._calls.hand_over_late()
        self._reporter.flush()
        self._calls.has_sent = False
