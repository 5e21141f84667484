"""SimAsker: which requests of a simulated target ask for a tree after a step, and when the trees are there."""

from __future__ import annotations

import functools
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from bench.simulated_draft import SimDraft
from bench.simulated_events import Events
from bench.simulated_request import SimRequest, Tally
from bench.simulated_router import SimRouter
from bench.simulated_world import World

_WINDOW_ROUNDS = 256
_LEAST_ROUNDS = 16  # before that, so many accepted drafts are expected:
_FIRST_ACCEPTED = 3.0
_LEAST_GAIN = 1.0  # tokens
_TIMES_SMOOTHING = 0.1
_MOST_RIDING = 64  # rows that go along with an ask; more go ahead, and the ask waits for them
_HALVES_DIFFER = 1  # trees, at most
_PATIENCE_SMOOTHING = 0.2
_LEAST_IN_TIME = 0.5  # share of a draft's trees below which it is asked only now and then
_PROBE_EVERY = 16  # batches of asks


class Surroundings(Protocol):
    """What a target works with."""

    world: World
    events: Events
    router: SimRouter
    tally: Tally
    drafts: Sequence[SimDraft]

    def ended(self, target: int, request: SimRequest) -> None: ...


class SimAsker:
    """Trees are awaited up to (expected accepted length - 1) plain steps. Calls arrived after each that came."""

    def __init__(self, around: Surroundings, requests: Collection[SimRequest], arrived: Callable[[], None]) -> None:
        """requests: of the target, as they come and go."""
        self.work_until_s = 0.0  # a draft is at work for the target up to then
        self._around = around
        self._requests = requests
        self._arrived = arrived
        self._accepted: deque[int] = deque(maxlen=_WINDOW_ROUNDS)
        self._scale = 1.0  # of plain steps: what is seen over the world's times
        self._in_time = [1.0] * len(around.drafts)
        self._left_out = [0] * len(around.drafts)

    def count(self, accepted: int) -> None:
        """Drafts of one tree."""
        self._accepted.append(accepted)
        self._around.tally.drafted_rounds += 1
        self._around.tally.accepted_tokens += accepted + 1

    def observe(self, rows: int, step_ms: float) -> None:
        """A step without prompts."""
        self._scale += _TIMES_SMOOTHING * (step_ms / self._around.world.steps.at_one(rows) - self._scale)

    def ask(self, num_decoding: int, *, is_split: bool) -> None:
        """For each request that has no tree and may speculate."""
        around, now_s = self._around, self._around.events.now_s
        deadline_s = now_s + self._patience_ms(num_decoding) / 1e3
        may_ask: dict[int, bool] = {}
        asks: dict[int, list[SimRequest]] = {}
        for request in self._requests:
            if not request.is_decoding or request.is_asking or request.has_tree or request.is_running:
                continue
            shape = around.router.shape(request, num_decoding)
            if shape is None or request.emitted + 1 >= request.output_len:
                continue
            index = request.number % len(around.drafts)
            if index not in may_ask:
                may_ask[index] = self._may_ask(index)
            if not may_ask[index] or (num_decoding > 1 and self._sends_ahead(request)):
                continue
            request.shape, request.is_asking, request.deadline_s = shape, True, deadline_s
            request.asked_s = now_s
            behind = request.committed + request.emitted - request.held
            request.held += behind if behind <= _MOST_RIDING else 0
            asks.setdefault(index, []).append(request)
        if is_split:
            self._balance([request for asking in asks.values() for request in asking])
        for index, asking in asks.items():
            self._send(index, asking)

    def _sends_ahead(self, request: SimRequest) -> bool:
        """Whether rows are on their way to its draft for which the ask waits."""
        world, now_s = self._around.world, self._around.events.now_s
        behind = request.committed + request.emitted - request.held
        if behind > _MOST_RIDING:
            request.synced_s = now_s + (world.rpc_ms + behind * world.follow_ms) / 1e3
        return now_s < request.synced_s

    def _send(self, index: int, asking: list[SimRequest]) -> None:
        world, events = self._around.world, self._around.events
        shapes = [request.shape for request in asking if request.shape is not None]
        way_ms = world.way_ms(len(shapes))
        self.work_until_s = events.now_s + (way_ms + world.draft_ms(Counter(shapes))) / 1e3
        told = [(request, request.emitted) for request in asking]

        def answer() -> None:
            events.after(way_ms, functools.partial(self._arrive, index, told))

        events.after(way_ms, functools.partial(self._around.drafts[index].ask, shapes, answer))

    def _arrive(self, index: int, asking: list[tuple[SimRequest, int]]) -> None:
        now_s = self._around.events.now_s
        for request, emitted in asking:
            request.is_asking = False
            request.has_tree = request.emitted == emitted and not request.is_running
            request.answered_s = now_s
            self._in_time[index] += _PATIENCE_SMOOTHING * (request.has_tree - self._in_time[index])
        self._arrived()

    def _may_ask(self, index: int) -> bool:
        """A draft whose trees mostly come too late is asked only now and then."""
        if self._in_time[index] >= _LEAST_IN_TIME:
            return True
        self._left_out[index] = (self._left_out[index] + 1) % _PROBE_EVERY
        return self._left_out[index] == 0

    def _balance(self, asked: list[SimRequest]) -> None:
        """Puts them into halves, each where it was, but for those that are too many there."""
        chosen = {request.number for request in asked}
        others = [request for request in self._requests if request.number not in chosen]
        held = [other.half for other in others if other.is_asking or other.has_tree or other.is_running]
        sizes = [held.count(0), held.count(1)]
        most = (sum(sizes) + len(asked)) // 2 + _HALVES_DIFFER
        for request in asked:
            if sizes[request.half] >= most:
                request.half ^= 1
            sizes[request.half] += 1

    def _patience_ms(self, num_decoding: int) -> float:
        is_measured = len(self._accepted) >= _LEAST_ROUNDS
        expected = sum(self._accepted) / len(self._accepted) if is_measured else _FIRST_ACCEPTED
        return max(expected, _LEAST_GAIN) * self._scale * self._around.world.steps.at_one(max(num_decoding, 1))
