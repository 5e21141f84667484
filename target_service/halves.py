"""Halves: whether a round's trees are verified all at once, or one half while the other half is drafted."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field

from target_service.deadline import StepTimes

_WINDOW_ROUNDS = 16  # of which a rate is taken
_SETTLE_ROUNDS = 3  # after a change, which are not counted
_IDLE_STEPS = 8  # without a tree, after which a window is begun anew
_LEAST_TREES = 4.0
_GAIN = 0.97  # the other way must take less than that part of the time
_SMOOTHING = 0.4
_RETRY_S = 0.5  # until a way that was slower is tried again, for it may have run amid prompts; doubled each time
_LONGEST_RETRY_S = 320.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SteppedTrees:
    """A step of a target that speculates."""

    requests: int  # of the target, past their prompt
    rows: int
    prompt_tokens: int  # of these rows
    trees: int
    nodes: int  # of the trees
    device_ms: float
    spent_ms: float  # of the loop's time: the step, and what it waited for trees before
    over_s: float  # the clock, at its end


@dataclass(slots=True)
class _Window:
    """What some rounds came to."""

    rounds: float = 0.0
    requests: int = 0  # summed over the steps with trees, as is what follows
    steps: int = 0
    rows: int = 0
    trees: int = 0
    nodes: int = 0
    spent_ms: float = 0.0
    device_ms: float = 0.0
    expected_ms: float = 0.0  # of the same steps at warm-up
    idle_steps: int = 0  # the last ones, without trees


@dataclass(slots=True)
class _Way:
    """What is known of one way to run at one load."""

    tree_ms: float  # of the loop's time a tree; averaged since the other way ran
    known_s: float


@dataclass(slots=True)
class _Load:
    """What is known at one load."""

    ways: dict[bool, _Way] = field(default_factory=dict)  # by whether rounds are split
    retry_s: float = _RETRY_S


class Halves:
    """Two halves hide the drafting, and read the weights twice a round. What that comes to depends on the way to the
    draft and on its GPU, which may be the target's own: so both are tried where halves could pay, and the faster is
    kept.

    What prompts take of their steps is left out, by the warm-up's times: many come at once where a load begins, and the
    way that runs then would look slow until it is tried again.

    Pure; engine thread only. A load is the requests and the nodes of a tree, each to the nearest power of two.
    """

    def __init__(self, times: StepTimes, *, enabled: bool) -> None:
        self._enabled = enabled
        self._times = times
        self._is_split = False
        self._loads: dict[tuple[int, int], _Load] = {}
        self._window = _Window(rounds=-_SETTLE_ROUNDS)

    @property
    def is_split(self) -> bool:
        """Whether trees of the two halves are verified apart."""
        return self._is_split

    def observe(self, step: SteppedTrees) -> None:
        """To be told of every step, those without trees included."""
        if not self._enabled:
            return
        window = self._window
        window.idle_steps = 0 if step.trees else window.idle_steps + 1
        if window.idle_steps > _IDLE_STEPS:
            self._window = _Window(rounds=-_SETTLE_ROUNDS)
            return
        if step.trees:
            window.rounds += 0.5 if self._is_split else 1.0
        if window.rounds <= 0:
            return
        rows = step.rows - step.prompt_tokens
        rest_ms = self._times.at_warm_up(rows) if rows else 0.0
        device_ms = step.device_ms * rest_ms / self._times.at_warm_up(step.rows)
        window.spent_ms += step.spent_ms - (step.device_ms - device_ms)
        if step.trees:
            window.requests += step.requests
            window.steps += 1
            window.rows += rows
            window.trees += step.trees
            window.nodes += step.nodes
            window.device_ms += device_ms
            window.expected_ms += rest_ms
        if window.rounds >= _WINDOW_ROUNDS:
            self._window = _Window()
            self._decide(window, step.over_s)

    def _decide(self, window: _Window, now_s: float) -> None:
        trees = window.trees / window.rounds
        load = self._loads.setdefault(_key(window), _Load())
        tree_ms = window.spent_ms / window.trees
        own, other = load.ways.get(self._is_split), load.ways.get(not self._is_split)
        if own is not None and (other is None or own.known_s > other.known_s):  # else it is long ago
            tree_ms = own.tree_ms + _SMOOTHING * (tree_ms - own.tree_ms)
        load.ways[self._is_split] = _Way(tree_ms, now_s)
        if self._is_split and trees < _LEAST_TREES:
            self._change(f"{trees:.1f} trees a round are too few for halves")
        elif other is None or now_s - other.known_s > load.retry_s:
            if other is not None:
                load.retry_s = min(2 * load.retry_s, _LONGEST_RETRY_S)
            if self._is_split or self._may_pay(window):
                self._change(f"a tree takes {tree_ms:.3f} ms of {trees:.1f}; the other way is tried")
        elif other.tree_ms < _GAIN * tree_ms:
            self._change(f"a tree takes {tree_ms:.3f} ms of {trees:.1f}, and {other.tree_ms:.3f} the other way")

    def _may_pay(self, window: _Window) -> bool:
        """Whether two steps of half the rows, with nothing between, would take less than a round at once does."""
        trees, rows = window.trees / window.rounds, window.rows / window.rounds
        scale = window.device_ms / window.expected_ms
        two_steps = 2 * scale * self._times.at_warm_up(max(1, round(rows / 2)))
        return trees >= _LEAST_TREES and two_steps < _GAIN * window.spent_ms / window.rounds

    def _change(self, why: str) -> None:
        self._is_split = not self._is_split
        self._window = _Window(rounds=-_SETTLE_ROUNDS)
        _log.debug("rounds are %s from now on: %s", "split" if self._is_split else "whole", why)


def _key(window: _Window) -> tuple[int, int]:
    """The load, however it is run. Requests that end with a step are not counted: of short ones, none may be left."""
    requests = max(1.0, window.requests / window.steps)
    return round(math.log2(requests)), round(math.log2(window.nodes / window.trees))
