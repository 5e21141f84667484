"""SimTarget: the decode loop of target_service by its rules: who steps when, who waits for which tree."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.simulated_draft import SimDraft
from bench.simulated_events import Events
from bench.simulated_request import SimRequest, Tally
from bench.simulated_router import SimRound, SimRouter
from bench.simulated_world import World
from router.adaptive import StepReport

_WINDOW_ROUNDS = 256
_LEAST_ROUNDS = 16  # before that, one accepted draft is expected
_LEAST_GAIN = 1.0  # tokens
_MOST_RIDING = 16  # rows that an ask carries: their time is part of the proposal's


class Surroundings(Protocol):
    """What a target works with."""

    world: World
    events: Events
    router: SimRouter
    tally: Tally
    drafts: Sequence[SimDraft]

    def ended(self, target: int, request: SimRequest) -> None: ...


@dataclass(frozen=True, slots=True)
class _Step:
    chunks: list[tuple[SimRequest, int]]  # prompts, and how many tokens of each
    turns: list[SimRequest]  # decoding requests
    rows: int
    context_tokens: int
    step_ms: float
    wait_ms: float


class SimTarget:
    """One step at a time; trees are awaited up to (expected accepted length - 1) plain steps."""

    def __init__(self, number: int, around: Surroundings) -> None:
        self.number = number
        self.requests: dict[int, SimRequest] = {}
        self._around = around
        self._num_decoding = 0
        self._is_stepping = False
        self._waiting_since_s: float | None = None
        self._accepted: deque[int] = deque(maxlen=_WINDOW_ROUNDS)

    def submit(self, request: SimRequest) -> None:
        self.requests[request.number] = request
        self.look()

    def drop(self, request: SimRequest) -> None:
        """It is cut off; a step that has begun goes on without it."""
        del self.requests[request.number]
        self._num_decoding -= request.is_decoding

    def look(self) -> None:
        """Begins a step, or waits for trees, or for a request."""
        if self._is_stepping or not self.requests:
            return
        router, now_s = self._around.router, self._around.events.now_s
        prompts: list[SimRequest] = []
        turns: list[SimRequest] = []
        deadlines: list[float] = []
        is_late = has_plain = False
        for request in self.requests.values():
            if not request.is_decoding:
                prompts.append(request)
            elif request.has_tree:
                turns.append(request)
            elif not request.is_asking:
                has_plain = True
                turns.append(request)
            elif now_s < request.deadline_s:
                deadlines.append(request.deadline_s)
            else:
                is_late = True
                turns.append(request)
        goes_on = is_late or ((has_plain or bool(prompts)) and not router.is_joined(self.number))
        if not deadlines or goes_on:
            self._begin(prompts, turns)
        elif self._waiting_since_s is None:
            self._waiting_since_s = now_s
            self._around.events.at(min(deadlines), self.look)

    def _begin(self, prompts: list[SimRequest], turns: list[SimRequest]) -> None:
        world, events = self._around.world, self._around.events
        since_s, self._waiting_since_s = self._waiting_since_s, None
        left, chunks = world.chunk_tokens, []
        for request in prompts:
            taken = min(left, request.prompt_len - request.committed)
            left -= taken
            if taken:
                chunks.append((request, taken))
        rows = sum(taken for _, taken in chunks)
        rows += sum(r.shape.num_draft_tokens if r.has_tree and r.shape is not None else 1 for r in turns)
        context = sum(r.prompt_len + r.emitted for r in turns)
        step_ms = world.step_ms(rows, num_requests=len(turns) + len(chunks), context_tokens=context)
        step_ms += world.follow_ms * self._take_behind()
        wait_ms = 0.0 if since_s is None else (events.now_s - since_s) * 1e3
        self._is_stepping = True
        step = _Step(chunks, turns, rows, context, step_ms, wait_ms)
        events.after(world.loop_ms + step_ms, functools.partial(self._finish, step))

    def _take_behind(self) -> int:
        """Rows that drafts lack of the requests that they follow, and have from now on."""
        behind = 0
        for request in self.requests.values():
            if self._around.router.follows(request):
                behind += request.committed + request.emitted - request.held
                request.held = request.committed + request.emitted
            else:
                request.held = 0
        return behind

    def _finish(self, step: _Step) -> None:
        self._is_stepping = False
        rounds: list[SimRound] = []
        num_prefill = sum(taken for _, taken in step.chunks)
        for request in step.turns:
            if request.number not in self.requests:
                continue
            accepted = 0
            if request.is_asking or request.has_tree:
                assert request.shape is not None
                accepted = request.accept(self._around.world.odds(request.shape)) if request.has_tree else 0
                rounds.append(SimRound(request.number, request.shape, accepted, not request.has_tree))
                self._count(request, accepted)
            request.has_tree = False
            self._emit(request, accepted + 1)
        for request, taken in step.chunks:
            request.committed += taken
            if request.number in self.requests and request.committed == request.prompt_len:
                self._num_decoding += 1
                self._emit(request, 1)
        report = StepReport(
            decoding=self._num_decoding,
            rows=step.rows,
            prefill_tokens=num_prefill,
            requests=len(step.turns),
            drafted=sum(not round_.late for round_ in rounds),
            context_tokens=step.context_tokens,
            step_ms=step.step_ms,
            wait_ms=step.wait_ms,
        )
        self._around.router.report(self.number, report, rounds, self._around.events.now_s)
        self._ask()
        self.look()

    def _count(self, request: SimRequest, accepted: int) -> None:
        if request.has_tree:
            self._accepted.append(accepted)
            self._around.tally.drafted_rounds += 1
            self._around.tally.accepted_tokens += accepted + 1

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

    def _ask(self) -> None:
        around, now_s = self._around, self._around.events.now_s
        deadline_s = now_s + self._patience_ms() / 1e3
        asks: dict[int, list[SimRequest]] = {}
        for request in self.requests.values():
            if not request.is_decoding or request.is_asking or request.has_tree:
                continue
            shape = around.router.shape(request, self._num_decoding)
            if shape is not None and request.emitted + 1 < request.output_len:
                request.shape, request.is_asking, request.deadline_s = shape, True, deadline_s
                behind = request.committed + request.emitted - request.held
                request.held += behind if behind <= _MOST_RIDING else 0
                asks.setdefault(request.number % len(around.drafts), []).append(request)
        for index, asking in asks.items():
            shapes = [request.shape for request in asking if request.shape is not None]
            answer = self._answer([(request, request.emitted) for request in asking])
            around.events.after(around.world.rpc_ms / 2, functools.partial(around.drafts[index].ask, shapes, answer))

    def _answer(self, asking: list[tuple[SimRequest, int]]) -> Callable[[], None]:
        """What the draft calls; the trees arrive half a round trip later."""

        def arrive() -> None:
            for request, emitted in asking:
                request.is_asking = False
                request.has_tree = request.emitted == emitted
            self.look()

        return lambda: self._around.events.after(self._around.world.rpc_ms / 2, arrive)

    def _patience_ms(self) -> float:
        measured = len(self._accepted) >= _LEAST_ROUNDS
        expected = sum(self._accepted) / len(self._accepted) if measured else 1.0
        return max(expected, _LEAST_GAIN) * self._around.world.steps.at_one(max(self._num_decoding, 1))
