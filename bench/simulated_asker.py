"""SimAsker: which requests of a simulated target ask for a tree after a step, and when the trees are there."""

from __future__ import annotations

import functools
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from bench.simulated_draft import DraftWork, SimDraft
from bench.simulated_events import Events
from bench.simulated_memory import TargetMemory
from bench.simulated_request import SimRequest, Tally
from bench.simulated_router import SimRouter
from bench.simulated_world import World
from paceline.types import TreeShape

_MOST_RIDING = 64  # rows that go along with an ask; more go ahead, and the ask waits for them
FLUSH_ROWS = 32  # that gather before a request that asks for no tree sends them
_ROUND_ROWS = 2  # that a draft's times are measured with
_HALVES_DIFFER = 1  # trees, at most


class Surroundings(Protocol):
    """What a target works with."""

    world: World
    events: Events
    router: SimRouter
    tally: Tally
    drafts: Sequence[SimDraft]

    def ended(self, target: int, request: SimRequest) -> None: ...


class Loop(Protocol):
    """A target's."""

    requests: dict[int, SimRequest]
    memory: TargetMemory

    def is_stepping(self) -> bool: ...

    def look(self) -> None:
        """To be called after trees came."""

    def hold(self, ms: float) -> None:
        """The host is busy for so long from now on, and launches nothing."""


class SimAsker:
    """Sends what is due of rows and asks, and takes trees as they come."""

    def __init__(self, around: Surroundings, loop: Loop) -> None:
        self._around = around
        self._loop = loop
        self._num_rows = 0  # that were sent by themselves since they were taken last
        self._work_s = (0.0, 0.0)  # from when to when a draft is at work on the target's trees

    def count(self, accepted: int) -> None:
        """Drafts of one tree."""
        self._loop.memory.window.extend([accepted])
        self._around.tally.drafted_rounds += 1
        self._around.tally.accepted_tokens += accepted + 1

    def ask(self, num_decoding: int, *, is_split: bool) -> None:
        """For each request that has no tree and may speculate."""
        around, now_s = self._around, self._around.events.now_s
        memory = self._loop.memory
        deadline_s = now_s + memory.deadline.seconds(num_decoding)
        may_ask: dict[int, bool] = {}
        asks: dict[int, list[SimRequest]] = {}
        for request in self._loop.requests.values():
            if request.is_asking or request.has_tree or request.is_running:
                continue
            if not around.router.follows(request):
                request.held, request.shape = 0, None
                continue
            index = request.number % len(around.drafts)
            request.shape = shape = self._shape(request, num_decoding)
            if shape is not None:
                if index not in may_ask:
                    may_ask[index] = memory.patience[index].may_ask()
                shape = shape if may_ask[index] else None
            self._sync(index, request, most=FLUSH_ROWS if shape is None else _MOST_RIDING)
            if shape is None or (num_decoding > 1 and not request.is_synced):
                continue
            request.is_asking, request.deadline_s, request.asked_s = True, deadline_s, now_s
            asks.setdefault(index, []).append(request)
        if is_split:
            self._balance([request for asking in asks.values() for request in asking])
        for index, asking in asks.items():
            self._send(index, asking)

    def work_s(self, since_s: float, until_s: float) -> float:
        """How long of that time a draft is at work on the target's trees."""
        began_s, over_s = self._work_s
        return max(0.0, min(until_s, over_s) - max(since_s, began_s))

    def take_rows(self) -> int:
        """Rows that left for drafts without an ask since the last call."""
        taken, self._num_rows = self._num_rows, 0
        return taken

    def _shape(self, request: SimRequest, num_decoding: int) -> TreeShape | None:
        if not request.is_decoding or request.emitted + 1 >= request.output_len:
            return None
        return self._around.router.shape(request, num_decoding)

    def _sync(self, index: int, request: SimRequest, *, most: int) -> None:
        """Sends the rows that its draft lacks, where they are more than that; they are confirmed when it has them."""
        world, events = self._around.world, self._around.events
        behind = request.committed + request.emitted - request.held
        if behind <= most or not request.is_synced:
            return
        request.held, request.is_synced = request.held + behind, False
        self._num_rows += behind
        way_ms = world.way_ms(0)

        def confirm() -> None:
            request.is_synced = True

        def answer() -> None:
            events.after(way_ms + behind * world.follow_ms, confirm)

        work = DraftWork((), behind, self._loop.is_stepping, answer)
        events.after(way_ms, functools.partial(self._around.drafts[index].take, work))

    def _note_work(self, began_s: float, ms: float) -> None:
        """A draft is at work for so long; it goes on from what it does already."""
        before_s, over_s = self._work_s
        self._work_s = (before_s if before_s <= began_s < over_s else began_s, max(over_s, began_s + ms / 1e3))

    def _send(self, index: int, asking: list[SimRequest]) -> None:
        world, events = self._around.world, self._around.events
        shapes = [request.shape for request in asking if request.shape is not None]
        way_ms, rows, late_rows = world.way_ms(len(shapes)), 0, 0
        for request, shape in zip(asking, shapes, strict=True):
            behind = request.committed + request.emitted - request.held
            request.held += behind
            rows += max(0, behind - _ROUND_ROWS)
            late_rows += max(0, behind - shape.num_steps - 1)
        send_ms = late_rows * world.send_ms
        self._loop.hold(send_ms)
        self._note_work(events.now_s + (send_ms + way_ms) / 1e3, world.draft_ms(Counter(shapes)))
        for request in asking:
            request.deadline_s += send_ms / 1e3
        told = [(request, request.emitted) for request in asking]

        def answer() -> None:
            events.after(way_ms, functools.partial(self._arrive, index, told))

        work = DraftWork(shapes, rows, self._loop.is_stepping, answer)
        events.after(send_ms + way_ms, functools.partial(self._around.drafts[index].take, work))

    def _arrive(self, index: int, asking: list[tuple[SimRequest, int]]) -> None:
        now_s, memory = self._around.events.now_s, self._loop.memory
        for request, emitted in asking:
            request.is_asking = False
            request.has_tree = request.emitted == emitted and not request.is_running
            request.answered_s = now_s
        memory.patience[index].note(in_time=statistics.fmean(request.has_tree for request, _ in asking))
        self._loop.look()

    def _balance(self, asked: list[SimRequest]) -> None:
        """Puts them into halves, each where it was, but for those that are too many there."""
        chosen = {request.number for request in asked}
        others = [request for request in self._loop.requests.values() if request.number not in chosen]
        held = [other.half for other in others if other.is_asking or other.has_tree or other.is_running]
        sizes = [held.count(0), held.count(1)]
        most = (sum(sizes) + len(asked)) // 2 + _HALVES_DIFFER
        for request in asked:
            if sizes[request.half] >= most:
                request.half ^= 1
            sizes[request.half] += 1
