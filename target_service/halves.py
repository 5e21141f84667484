"""Halves: whether a round's trees are verified all at once, or one half while the other half is drafted."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from target_service.deadline import StepTimes

_log = logging.getLogger(__name__)

_SMOOTHING = 0.1
_GAIN = 1.03  # the other way must be that much shorter
_DWELL_STEPS = 24  # between two changes, at least
_LEARN_STEPS = 12  # with trees after a change, in which both ways' turnarounds are compared
_FIRST_RATIO = 0.75  # of the turnaround of half the trees to that of all, before it was seen: part of it is constant
_RATIOS = (0.4, 3.0)  # that are believed
_FIRST_GAP_MS = 0.2  # between two steps of which the second was launched before the first was over
_LEAST_TREES = 4


@dataclass(frozen=True, slots=True)
class TreeStep:
    """A step with trees. Milliseconds."""

    rows: int
    trees: int
    device_ms: float
    step_ms: float  # as its load report has it
    turnaround_ms: float  # from the ask for its trees until they were there
    is_queued: bool  # it was launched before the last one was over
    is_followed: bool  # and another before it was


class Halves:
    """Two halves hide the drafting, and read the weights twice a round. Pure; engine thread only.

    With T a step's time on the device by its rows R, H what the host adds to it, D the turnaround of all trees and d
    that of half of them, a round takes T(R) + H + D at once, and in halves the longer of 2 T(R / 2) and
    T(R / 2) + H + d. T is the warm-up's, scaled by what is seen, apart for either way: a draft on the same GPU takes
    its time from steps that run beside it.
    """

    def __init__(self, times: StepTimes, *, enabled: bool) -> None:
        self._enabled = enabled
        self._times = times
        self._is_split = False
        self._rows = 0.0  # of a whole round, and its trees; averaged, as is all that follows
        self._trees = 0.0
        self._scale: dict[bool, float | None] = {False: None, True: None}  # of T, by whether rounds are split
        self._host_ms: float | None = None
        self._gap_ms = _FIRST_GAP_MS
        self._turnaround_ms: float | None = None  # of the way that is taken
        self._before_ms = 0.0  # the turnaround when the way was changed last
        self._ratio = _FIRST_RATIO
        self._steps = 0  # since then

    @property
    def is_split(self) -> bool:
        """Whether trees of the two halves are verified apart."""
        return self._is_split

    def observe(self, step: TreeStep) -> None:
        """To be told of every such step."""
        if not self._enabled:
            return
        self._steps += 1
        whole = 2 if self._is_split else 1
        self._rows = _mean(self._rows or None, whole * step.rows)
        self._trees = _mean(self._trees or None, whole * step.trees)
        scale = step.device_ms / self._times.at_warm_up(step.rows)
        self._scale[self._is_split] = _mean(self._scale[self._is_split], scale)
        if step.is_queued:
            self._gap_ms = _mean(self._gap_ms, max(0.0, step.step_ms - step.device_ms))
        elif not step.is_followed:
            self._host_ms = _mean(self._host_ms, step.step_ms - step.device_ms)
        self._turnaround_ms = _mean(self._turnaround_ms, step.turnaround_ms)
        if self._before_ms and self._steps == _LEARN_STEPS:
            ratio = self._turnaround_ms / self._before_ms
            self._ratio = min(max(ratio if self._is_split else 1.0 / ratio, _RATIOS[0]), _RATIOS[1])
        if self._steps >= _DWELL_STEPS:
            self._choose()

    def rounds_ms(self) -> tuple[float, float]:
        """What a round takes at once, and in halves."""
        assert self._turnaround_ms is not None
        at_once, apart = self._scale[False], self._scale[True]
        at_once = apart if at_once is None else at_once
        apart = at_once if apart is None else apart
        assert at_once is not None and apart is not None
        all_trees = self._turnaround_ms / self._ratio if self._is_split else self._turnaround_ms
        host_ms = self._host_ms or 0.0
        half = apart * self._times.at_warm_up(max(1, round(self._rows / 2)))
        whole = at_once * self._times.at_warm_up(max(1, round(self._rows)))
        return whole + host_ms + all_trees, max(2 * (half + self._gap_ms), half + host_ms + all_trees * self._ratio)

    def _choose(self) -> None:
        at_once, apart = self.rounds_ms()
        if self._is_split:
            changes = self._trees < _LEAST_TREES or at_once * _GAIN < apart
        else:
            changes = self._trees >= _LEAST_TREES and apart * _GAIN < at_once
        if changes:
            assert self._turnaround_ms is not None
            self._is_split = not self._is_split
            way = "in halves" if self._is_split else "at once"
            _log.debug(
                "trees are verified %s from now on: %.0f rows, %.0f trees; a round takes %.2f ms at once, %.2f apart",
                way,
                self._rows,
                self._trees,
                at_once,
                apart,
            )
            self._before_ms, self._turnaround_ms = self._turnaround_ms, None
            self._steps = 0


def _mean(mean: float | None, value: float) -> float:
    """The average with one more value in it; None: the first."""
    return value if mean is None else mean + _SMOOTHING * (value - mean)
