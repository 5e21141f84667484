"""SimTarget: the decode loop of target_service by its rules: steps, what is known at their end, and who asks then."""

from __future__ import annotations

import functools
from collections import deque
from dataclasses import dataclass

from bench.simulated_asker import SimAsker, Surroundings
from bench.simulated_memory import TargetMemory
from bench.simulated_request import SimRequest
from bench.simulated_router import SimRound
from bench.simulated_schedule import Due, Moment, cut_trees, schedule, schedule_ahead
from paceline.types import TreeShape
from router.step_report import StepReport
from target_service.halves import SteppedTrees

GAP_MS = 0.2  # between two steps of which the second was launched before the first was over

_MOST_FLIGHTS = 2  # steps under way
_LEAD_MS = 1.0  # before a plain step is over, that the one behind it is launched: twice a launch, and 0.3


@dataclass(slots=True, eq=False)
class _Flight:
    """A step under way. Times on the simulation's clock; end_s moves where a draft works beside it."""

    chunks: list[tuple[SimRequest, int]]  # prompts, and how many tokens of each
    turns: list[SimRequest]  # decoding requests
    trees: list[TreeShape]  # of those that have one
    late: set[int]  # numbers of those whose tree did not come in time
    rows: int
    context_tokens: int
    watched: int  # decoding requests that drafts follow
    began_s: float
    end_s: float  # of the device's work
    is_ahead: bool  # of the same requests as the one before, launched behind it
    is_queued: bool  # of others, launched behind it
    wait_ms: float  # before it, for trees alone
    turnaround_ms: float
    is_plain: bool  # no request that it holds asks for trees
    is_followed: bool = False  # others were launched behind it

    @property
    def requests(self) -> list[SimRequest]:
        return [*self.turns, *(request for request, _ in self.chunks)]


class SimTarget:
    """One step at a time; two, one behind the other, where rounds are split in halves, or where nobody speculates."""

    def __init__(self, number: int, around: Surroundings, memory: TargetMemory) -> None:
        self.number = number
        self.memory = memory
        self.requests: dict[int, SimRequest] = {}
        self._around = around
        self._num_decoding = 0
        self._num_steps = 0
        self._flights: deque[_Flight] = deque()
        self._asker = SimAsker(around, self)
        self._over_s = 0.0  # when the last step was over
        self._host_free_s = 0.0  # until then the host is busy with a step that the device is done with
        self._waiting_since_s: float | None = None
        self._has_news = False  # requests came since drafts were asked

    def submit(self, request: SimRequest) -> None:
        self.requests[request.number] = request
        self._has_news = True
        if not self._flights:
            self._ask()
        self.look()

    def is_stepping(self) -> bool:
        return len(self._flights) > 0

    def hold(self, ms: float) -> None:
        self._host_free_s = max(self._host_free_s, self._around.events.now_s) + ms / 1e3
        self._around.events.at(self._host_free_s, self.look)

    def drop(self, request: SimRequest) -> None:
        """It is cut off; a step that has begun goes on without it."""
        del self.requests[request.number]
        self._num_decoding -= request.is_decoding

    def look(self) -> None:
        """Begins a step, or waits for trees, or for a request."""
        now_s = self._around.events.now_s
        while now_s >= self._host_free_s and self._may_launch:
            due = self._due()
            if due.is_empty:
                if due.until_s is not None and not self._flights and self._waiting_since_s is None:
                    self._waiting_since_s = now_s
                    self._around.events.at(due.until_s, self.look)
                return
            self._launch(due)

    @property
    def _may_launch(self) -> bool:
        if not self._flights:
            return True
        if len(self._flights) == _MOST_FLIGHTS:
            return False
        if self._may_run_ahead:
            return self._around.events.now_s >= self._follow_s
        return self.memory.halves.is_split

    @property
    def _may_run_ahead(self) -> bool:
        return self._around.world.overlaps and len(self._flights) == 1 and self._flights[0].is_plain

    @property
    def _follow_s(self) -> float:
        return self._flights[0].end_s - _LEAD_MS / 1e3

    def _due(self) -> Due:
        is_split = self.memory.halves.is_split
        if self._may_run_ahead:
            due = schedule_ahead(self.requests.values(), self._speculates)
            if not due.is_empty or not is_split:
                return due
        joins = self._around.router.is_joined(self.number)
        joins = self.memory.tree_wait.is_short if joins is None else joins
        moment = Moment(self._around.events.now_s, joins, is_split, is_busy=len(self._flights) > 0)
        return schedule(self.requests.values(), moment)

    def _speculates(self, request: SimRequest) -> bool:
        router = self._around.router
        return router.follows(request) and router.shape(request, self._num_decoding) is not None

    def _launch(self, due: Due) -> None:
        world, events = self._around.world, self._around.events
        since_s, self._waiting_since_s = self._waiting_since_s, None
        left, chunks = world.chunk_tokens, []
        for request in due.prompts:
            taken = min(left, request.prompt_len - request.committed - request.pending)
            left -= taken
            if taken:
                chunks.append((request, taken))
        num_prompt = sum(taken for _, taken in chunks)
        with_tree = [request for request in due.turns if request.has_tree]
        trees = cut_trees(with_tree, world.max_rows - num_prompt - len(due.turns))
        rows = num_prompt + len(due.turns) + sum(shape.num_draft_tokens - 1 for shape in trees)
        context = sum(r.prompt_len + r.emitted for r in due.turns)
        is_ahead, is_queued = self._may_run_ahead, len(self._flights) > 0
        began_s = events.now_s + world.loop_ms / 1e3
        if self._flights:
            self._flights[-1].is_followed = not is_ahead
            began_s = self._flights[-1].end_s + (0.0 if is_ahead else GAP_MS / 1e3)
        num_requests = len(due.turns) + len(chunks)
        device_ms = world.device_ms(rows, requests=num_requests, prompt_tokens=num_prompt, context_tokens=context)
        device_ms += world.follow_ms * self._asker.take_rows()
        wait_ms = 0.0 if since_s is None else (events.now_s - since_s) * 1e3
        if trees:
            self.memory.tree_wait.observe(wait_ms / 1e3)
        flight = _Flight(
            chunks=chunks,
            turns=due.turns,
            trees=trees,
            late={request.number for request in due.turns if request.is_asking},
            rows=rows,
            context_tokens=context,
            watched=sum(map(self._around.router.follows, due.turns)),
            began_s=began_s,
            end_s=began_s + device_ms / 1e3,
            is_ahead=is_ahead,
            is_queued=is_queued and not is_ahead,
            wait_ms=wait_ms,
            turnaround_ms=_turnaround_ms(with_tree),
            is_plain=not any(map(self._speculates, due.turns)),
        )
        self._num_steps += 1
        for request in flight.requests:
            request.last_step = self._num_steps
        self._delay(flight, began_s)
        self._flights.append(flight)
        self._mark(flight)
        events.at(flight.end_s, functools.partial(self._finish, flight))
        self._come_back()

    def _come_back(self) -> None:
        """To launch a step behind the one under way."""
        if self._may_run_ahead:
            self._around.events.at(self._follow_s, self.look)

    def _mark(self, flight: _Flight) -> None:
        """Its requests, that they take part."""
        for request in flight.requests:
            request.is_running = True
        for request, taken in flight.chunks:
            request.pending += taken

    def _delay(self, flight: _Flight, since_s: float) -> None:
        """By what a draft's work takes from the step."""
        beside_s = min(self._asker.work_until_s, flight.end_s) - since_s
        flight.end_s += self._around.world.share_taken(flight.rows) * max(0.0, beside_s)

    def _finish(self, flight: _Flight) -> None:
        """The device is done, unless a draft has delayed it; the host has its part to do."""
        events = self._around.events
        if flight.end_s > events.now_s:
            events.at(flight.end_s, functools.partial(self._finish, flight))
            return
        is_alone = len(self._flights) == 1
        host_ms = self._around.world.host_ms(len(flight.trees), watched=flight.watched, is_alone=is_alone)
        self._host_free_s = max(events.now_s, self._host_free_s) + host_ms / 1e3
        events.at(self._host_free_s, functools.partial(self._land, flight))

    def _land(self, flight: _Flight) -> None:
        now_s = self._around.events.now_s
        assert self._flights.popleft() is flight
        for request in flight.requests:
            request.is_running, request.pending = False, 0
        for following in self._flights:
            self._mark(following)
        rounds = self._commit(flight)
        free_s = max(flight.began_s, self._over_s)
        self._over_s = flight.end_s if self._flights else now_s
        report = StepReport(
            decoding=self._num_decoding,
            rows=flight.rows,
            prefill_tokens=sum(taken for _, taken in flight.chunks),
            requests=len(flight.turns),
            drafted=len(flight.trees),
            context_tokens=flight.context_tokens,
            step_ms=(self._over_s - free_s) * 1e3,
            wait_ms=flight.wait_ms,
            turnaround_ms=flight.turnaround_ms,
            prefilling=len(self.requests) - self._num_decoding,
        )
        if not (flight.chunks or flight.is_queued or flight.is_followed):
            self.memory.times.observe(report.rows, report.step_ms)
        self.memory.halves.observe(
            SteppedTrees(
                requests=self._num_decoding,
                rows=flight.rows,
                trees=len(flight.trees),
                nodes=sum(shape.num_draft_tokens for shape in flight.trees),
                device_ms=(flight.end_s - flight.began_s) * 1e3,
                spent_ms=report.step_ms + flight.wait_ms,
                over_s=self._over_s,
            )
        )
        self._around.router.report(self.number, report, rounds, now_s)
        had_news = self._has_news
        self._ask()
        if had_news:
            self._ask()
        for following in self._flights:
            self._delay(following, now_s)
        self._come_back()
        self.look()

    def _ask(self) -> None:
        """Once after each step, and once more where something came meanwhile that may make a request ask."""
        self._has_news = False
        self._asker.ask(self._num_decoding, is_split=self.memory.halves.is_split)

    def _commit(self, flight: _Flight) -> list[SimRound]:
        """Gives each request its tokens. Returns the rounds of those that asked for a tree."""
        rounds: list[SimRound] = []
        for request in flight.turns:
            if request.number not in self.requests:
                continue
            accepted = 0
            if request.number in flight.late or request.has_tree:
                assert request.shape is not None
                accepted = request.accept(self._around.world.odds(request.shape)) if request.has_tree else 0
                rounds.append(SimRound(request.number, request.shape, accepted, not request.has_tree))
                if request.has_tree:
                    self._asker.count(accepted)
                self._around.tally.late_rounds += not request.has_tree
            request.has_tree = False
            self._emit(request, accepted + 1)
        for request, taken in flight.chunks:
            request.committed += taken
            if request.number in self.requests and request.committed == request.prompt_len:
                self._num_decoding += 1
                self._emit(request, 1)
        return rounds

    def _emit(self, request: SimRequest, tokens: int) -> None:
        now_s = self._around.events.now_s
        tokens = min(tokens, request.output_len - request.emitted)
        if not request.emitted:
            request.first_s = now_s
            self._around.tally.began(request)
        request.emitted += tokens
        self._around.tally.tokens.append((now_s, tokens))
        if request.emitted == request.output_len:
            self._num_decoding -= 1
            del self.requests[request.number]
            self._around.ended(self.number, request)


def _turnaround_ms(with_tree: list[SimRequest]) -> float:
    """Of the tree that took longest, from its ask on; 0 without any."""
    return 1e3 * max((request.answered_s - request.asked_s for request in with_tree), default=0.0)
