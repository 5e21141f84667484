"""What runs in a simulated target's next step, by target_service's rules: who steps when, who waits for which tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from bench.simulated_request import SimRequest
from paceline.types import TreeShape


@dataclass(frozen=True, slots=True)
class Moment:
    """When a step is looked for."""

    now_s: float
    joins: bool  # prompts and plain requests wait for trees that are on their way
    is_split: bool = False  # trees of the two halves are verified apart
    is_busy: bool = False  # a step is under way: another follows only for the trees of the other half


@dataclass(frozen=True, slots=True)
class Due:
    """until_s: where nobody has a turn, when a tree is late; None where none is awaited."""

    prompts: list[SimRequest] = field(default_factory=list)
    turns: list[SimRequest] = field(default_factory=list)
    until_s: float | None = None
    is_ahead: bool = False  # of the requests of the step under way

    @property
    def is_empty(self) -> bool:
        return not (self.prompts or self.turns)


def schedule(requests: Iterable[SimRequest], moment: Moment, speculates: Callable[[SimRequest], bool]) -> Due:
    """Requests in order of arrival; those that a step under way has are left out, and the rest of their half waits.

    speculates: whether a request does, or is to once its prompt is done.
    """
    prompts: list[SimRequest] = []
    ready: list[SimRequest] = []
    others: list[SimRequest] = []  # that step without a tree
    deadlines: list[float] = []
    waiting_halves: set[int] = set()
    is_late = False
    for request in requests:
        if request.is_running:
            if speculates(request):
                waiting_halves.add(request.half)
            continue
        if not request.is_decoding:
            prompts.append(request)
        elif request.has_tree:
            ready.append(request)
        elif request.is_asking and (moment.is_busy or moment.now_s < request.deadline_s):
            deadlines.append(request.deadline_s)
            waiting_halves.add(request.half)
        else:
            is_late |= request.is_asking
            others.append(request)
    until_s = min(deadlines, default=None)
    half = _whole_half(ready, waiting_halves) if moment.is_split else []
    if half:
        return Due(prompts, half + others)
    is_idle = not (others or prompts)
    if moment.is_busy or (until_s is not None and (is_idle or (moment.joins and not is_late))):
        return Due(until_s=until_s)
    return Due(prompts, ready + others)


def schedule_ahead(requests: Iterable[SimRequest], speculates: Callable[[SimRequest], bool]) -> Due:
    """The step behind one that verifies no tree, before its tokens are known; nothing where a decoding request
    speculates. speculates: whether a request does once its prompt is done."""
    prompts: list[SimRequest] = []
    turns: list[SimRequest] = []
    for request in requests:
        if request.committed + request.pending < request.prompt_len:
            prompts.append(request)
        elif speculates(request):
            if request.is_decoding:
                return Due()
        elif request.emitted + request.is_running < request.output_len:
            turns.append(request)
    return Due(prompts, turns, is_ahead=True)


def chunks_of(prompts: Iterable[SimRequest], num_tokens: int) -> list[tuple[SimRequest, int]]:
    """Prompts, and how many tokens of each go next, in their order up to num_tokens."""
    chunks: list[tuple[SimRequest, int]] = []
    for request in prompts:
        taken = min(num_tokens, request.prompt_len - request.committed - request.pending)
        num_tokens -= taken
        if taken:
            chunks.append((request, taken))
    return chunks


def cut_trees(requests: Iterable[SimRequest], spare: int) -> list[TreeShape]:
    """The trees of the requests, as large as they fit; past that there are none. spare: rows for their nodes but the
    first. MUTATES requests."""
    shapes: list[TreeShape] = []
    for request in requests:
        shape = request.shape
        assert shape is not None
        if spare < 1:
            request.has_tree = False
            continue
        if shape.num_draft_tokens - 1 > spare:
            request.shape = shape = replace(shape, num_draft_tokens=spare + 1)
        spare -= shape.num_draft_tokens - 1
        shapes.append(shape)
    return shapes


def _whole_half(ready: list[SimRequest], waiting_halves: set[int]) -> list[SimRequest]:
    """The trees of the half of which none is missing; of two such, the one whose turn it is. Empty without one."""
    whole = [request for request in ready if request.half not in waiting_halves]
    if not whole:
        return whole
    half = min(whole, key=lambda request: request.last_step).half
    return [request for request in whole if request.half == half]
