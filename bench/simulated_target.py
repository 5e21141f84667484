"""SimTarget: the decode loop of target_service by its rules: steps, what is known at their end, and who asks then."""

from __future__ import annotations

import functools
from collections import deque
from dataclasses import dataclass

from bench.simulated_asker import SimAsker, Surroundings
from bench.simulated_halves import GAP_MS, SimHalves
from bench.simulated_request import SimRequest
from bench.simulated_router import SimRound
from bench.simulated_schedule import Due, Moment, cut_trees, schedule
from bench.simulated_tree_wait import SimTreeWait
from paceline.types import TreeShape
from router.adaptive import StepReport

_MOST_FLIGHTS = 2  # steps under way


@dataclass(slots=True, eq=False)
class _Flight:
    """A step under way. Times on the simulation's clock; end_s moves where a draft works beside it."""

    chunks: list[tuple[SimRequest, int]]  # prompts, and how many tokens of each
    turns: list[SimRequest]  # decoding requests
    trees: list[TreeShape]  # of those that have one
    rows: int
    context_tokens: int
    watched: int  # decoding requests that drafts follow
    began_s: float
    end_s: float  # of the device's work
    wait_ms: float  # before it, for trees alone
    turnaround_ms: float


class SimTarget:
    """One step at a time, or two where rounds are split in halves, one behind the other."""

    def __init__(self, number: int, around: Surroundings) -> None:
        self.number = number
        self.requests: dict[int, SimRequest] = {}
        self._around = around
        self._num_decoding = 0
        self._num_steps = 0
        self._flights: deque[_Flight] = deque()
        self.halves = SimHalves(around.world)
        self._asker = SimAsker(around, self)
        self._tree_wait = SimTreeWait(self._asker)
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

    def drop(self, request: SimRequest) -> None:
        """It is cut off; a step that has begun goes on without it."""
        del self.requests[request.number]
        self._num_decoding -= request.is_decoding

    def look(self) -> None:
        """Begins a step, or waits for trees, or for a request."""
        now_s, is_split = self._around.events.now_s, self.halves.is_split
        while now_s >= self._host_free_s and len(self._flights) < (_MOST_FLIGHTS if is_split else 1):
            is_busy = len(self._flights) > 0
            joins = self._around.router.is_joined(self.number)
            moment = Moment(now_s, self._tree_wait.is_short if joins is None else joins, is_split, is_busy)
            due = schedule(self.requests.values(), moment)
            if due.is_empty:
                if due.until_s is not None and not is_busy and self._waiting_since_s is None:
                    self._waiting_since_s = now_s
                    self._around.events.at(due.until_s, self.look)
                return
            self._launch(due)

    def _launch(self, due: Due) -> None:
        world, events = self._around.world, self._around.events
        since_s, self._waiting_since_s = self._waiting_since_s, None
        left, chunks = world.chunk_tokens, []
        for request in due.prompts:
            taken = min(left, request.prompt_len - request.committed)
            left -= taken
            if taken:
                chunks.append((request, taken))
        num_prompt = sum(taken for _, taken in chunks)
        with_tree = [request for request in due.turns if request.has_tree]
        trees = cut_trees(with_tree, world.max_rows - num_prompt - len(due.turns))
        rows = num_prompt + len(due.turns) + sum(shape.num_draft_tokens - 1 for shape in trees)
        context = sum(r.prompt_len + r.emitted for r in due.turns)
        began_s = events.now_s + world.loop_ms / 1e3
        if self._flights:
            began_s = self._flights[-1].end_s + GAP_MS / 1e3
        device_ms = world.device_ms(rows, prompt_tokens=num_prompt, context_tokens=context)
        device_ms += world.follow_ms * self._asker.take_rows()
        wait_ms = 0.0 if since_s is None else (events.now_s - since_s) * 1e3
        if trees:
            self._tree_wait.observe(wait_ms)
        flight = _Flight(
            chunks=chunks,
            turns=due.turns,
            trees=trees,
            rows=rows,
            context_tokens=context,
            watched=sum(map(self._around.router.follows, due.turns)),
            began_s=began_s,
            end_s=began_s + device_ms / 1e3,
            wait_ms=wait_ms,
            turnaround_ms=_turnaround_ms(with_tree),
        )
        self._num_steps += 1
        for request in (*due.turns, *(request for request, _ in chunks)):
            request.is_running, request.last_step = True, self._num_steps
        self._delay(flight, began_s)
        self._flights.append(flight)
        events.at(flight.end_s, functools.partial(self._finish, flight))

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
        num_requests = len(flight.turns) + len(flight.chunks)
        host_ms = self._around.world.host_ms(num_requests, len(flight.trees), watched=flight.watched)
        self._host_free_s = max(events.now_s, self._host_free_s) + host_ms / 1e3
        events.at(self._host_free_s, functools.partial(self._land, flight))

    def _land(self, flight: _Flight) -> None:
        now_s = self._around.events.now_s
        assert self._flights.popleft() is flight
        for request in (*flight.turns, *(request for request, _ in flight.chunks)):
            request.is_running = False
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
        if not flight.chunks:
            self._asker.observe(report.rows, report.step_ms)
        if flight.trees:
            self.halves.observe(flight.rows, len(flight.trees), flight.trees[0])
        self._around.router.report(self.number, report, rounds, now_s)
        had_news = self._has_news
        self._ask()
        if had_news:
            self._ask()
        for following in self._flights:
            self._delay(following, now_s)
        self.look()

    def _ask(self) -> None:
        """Once after each step, and once more where something came meanwhile that may make a request ask."""
        self._has_news = False
        self._asker.ask(self._num_decoding, is_split=self.halves.is_split)

    def _commit(self, flight: _Flight) -> list[SimRound]:
        """Gives each request its tokens. Returns the rounds of those that asked for a tree."""
        rounds: list[SimRound] = []
        for request in flight.turns:
            if request.number not in self.requests:
                continue
            accepted = 0
            if request.is_asking or request.has_tree:
                assert request.shape is not None
                accepted = request.accept(self._around.world.odds(request.shape)) if request.has_tree else 0
                rounds.append(SimRound(request.number, request.shape, accepted, not request.has_tree))
                if request.has_tree:
                    self._asker.count(accepted)
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
