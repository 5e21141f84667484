"""SimTarget: the decode loop of target_service by its rules: steps, what is known at their end, and who asks then."""

from __future__ import annotations

import functools
from collections import deque

from bench.simulated_asker import SimAsker, Surroundings
from bench.simulated_flight import Flight
from bench.simulated_memory import TargetMemory
from bench.simulated_request import SimRequest
from bench.simulated_router import SimRound
from bench.simulated_schedule import Due, Moment, chunks_of, cut_trees, schedule, schedule_ahead

GAP_MS = 0.2  # between two steps of which the second was launched before the first was over

_MOST_FLIGHTS = 2  # steps under way
_LEAD_MS = 1.0  # before a plain step is over, that the one behind it is launched: twice a launch, and 0.3


class SimTarget:
    """One step at a time; two, one behind the other, where rounds are split in halves, or where nobody speculates."""

    def __init__(self, number: int, around: Surroundings, memory: TargetMemory) -> None:
        self.number = number
        self.memory = memory
        self.requests: dict[int, SimRequest] = {}
        self._around = around
        self._num_decoding = 0
        self._num_steps = 0
        self._flights: deque[Flight] = deque()
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
        return schedule(self.requests.values(), moment, self._speculates)

    def _speculates(self, request: SimRequest) -> bool:
        router = self._around.router
        return router.follows(request) and router.shape(request, self._num_decoding) is not None

    def _launch(self, due: Due) -> None:
        world, events, behind = self._around.world, self._around.events, None
        if self._flights:
            behind = self._flights[-1]
            behind.is_followed = not due.is_ahead
        since_s, self._waiting_since_s = self._waiting_since_s, None
        wait_ms = 0.0 if since_s is None else (events.now_s - since_s) * 1e3
        chunks = chunks_of(due.prompts, world.chunk_tokens)
        with_tree = [request for request in due.turns if request.has_tree]
        spare = world.max_rows - sum(taken for _, taken in chunks) - len(due.turns)
        began_s = self._begin_s(behind, is_ahead=due.is_ahead)
        flight = Flight(
            chunks=chunks,
            turns=due.turns,
            trees=cut_trees(with_tree, spare),
            late={request.number for request in due.turns if request.is_asking},
            context_tokens=sum(request.prompt_len + request.emitted for request in due.turns),
            watched=sum(map(self._around.router.follows, due.turns)),
            began_s=began_s,
            end_s=began_s,
            wait_ms=wait_ms,
            turnaround_ms=1e3 * max((r.answered_s - r.asked_s for r in with_tree), default=0.0),
            is_plain=world.overlaps and not any(map(self._speculates, due.turns)),
            is_queued=behind is not None and not due.is_ahead,
        )
        flight.end_s += self._device_ms(flight) / 1e3
        if flight.trees:
            self.memory.tree_wait.observe(wait_ms / 1e3)
        self._num_steps += 1
        for request in flight.requests:
            request.last_step = self._num_steps
        self._delay(flight, began_s)
        self._flights.append(flight)
        flight.mark()
        events.at(flight.end_s, functools.partial(self._finish, flight))
        self._come_back()

    def _begin_s(self, behind: Flight | None, *, is_ahead: bool) -> float:
        """When a step that is launched now begins."""
        if behind is None:
            return self._around.events.now_s + self._around.world.loop_ms / 1e3
        return behind.end_s + (0.0 if is_ahead else GAP_MS / 1e3)

    def _device_ms(self, flight: Flight) -> float:
        world = self._around.world
        step_ms = world.device_ms(
            flight.rows,
            requests=len(flight.requests),
            prompt_tokens=flight.num_prompt_tokens,
            context_tokens=flight.context_tokens,
        )
        return step_ms + world.follow_ms * self._asker.take_rows()

    def _come_back(self) -> None:
        """To launch a step behind the one under way."""
        if self._may_run_ahead:
            self._around.events.at(self._follow_s, self.look)

    def _delay(self, flight: Flight, since_s: float) -> None:
        """By what a draft's work takes from the step."""
        beside_s = self._asker.work_s(since_s, flight.end_s)
        flight.end_s += self._around.world.share_taken(flight.rows) * beside_s

    def _finish(self, flight: Flight) -> None:
        """The device is done, unless a draft has delayed it; the host has its part to do."""
        events = self._around.events
        if flight.end_s > events.now_s:
            events.at(flight.end_s, functools.partial(self._finish, flight))
            return
        is_alone = len(self._flights) == 1
        host_ms = self._around.world.host_ms(len(flight.trees), watched=flight.watched, is_alone=is_alone)
        self._host_free_s = max(events.now_s, self._host_free_s) + host_ms / 1e3
        events.at(self._host_free_s, functools.partial(self._land, flight))

    def _land(self, flight: Flight) -> None:
        now_s = self._around.events.now_s
        assert self._flights.popleft() is flight
        flight.unmark()
        for following in self._flights:
            following.mark()
        rounds = self._commit(flight)
        free_s = max(flight.began_s, self._over_s)
        self._over_s = flight.end_s if self._flights else now_s
        step_ms, num_decoding = (self._over_s - free_s) * 1e3, self._num_decoding
        if not (flight.chunks or flight.is_queued or flight.is_followed):
            self.memory.times.observe(flight.rows, step_ms)
        self.memory.halves.observe(flight.stepped_trees(step_ms, self._over_s, requests=num_decoding))
        report = flight.report(step_ms, decoding=num_decoding, prefilling=len(self.requests) - num_decoding)
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

    def _commit(self, flight: Flight) -> list[SimRound]:
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
