"""How long a target waits for a tree."""

from __future__ import annotations

from paceline.step_table import StepTable
from target_service.speculation_stats import AcceptanceWindow

PRIOR_ACCEPTED_LENGTH = 4.0  # before MIN_ROUNDS were seen: trees that all came late would never be measured
MIN_ROUNDS = 16
# Tokens: one request that accepts little must not make the trees of all late. Whether they pay is the router's to say.
MIN_GAIN = 1.0
_SMOOTHING = 0.1
# Of the time past which plain decoding would be faster. One H200, 8B shape, 256 requests: trees take about that long,
# and one that is thrown away was drafted for nothing. So at 1 runs of one setting spread by up to 22 %, at 2 by 4 %; at
# 4 a draft that is far too slow would hold a fixed tree at half of plain decoding's speed (docs/decisions.md).
_SLACK = 2.0


class StepTimes:
    """Milliseconds of a step without prompts by its rows: measured at warm-up, scaled by what is seen since."""

    def __init__(self, rows: list[int], step_ms: list[float]) -> None:
        """rows ascend."""
        self.warm_up = tuple(zip(rows, step_ms, strict=True))
        self._table = StepTable(self.warm_up)
        self._scale = 1.0
        self._between: dict[int, float] = {}  # of rows that were asked for

    def expect(self, num_rows: int) -> float:
        return self._scale * self.at_warm_up(num_rows)

    def observe(self, num_rows: int, step_ms: float) -> None:
        ratio = step_ms / self.at_warm_up(num_rows)
        self._scale += _SMOOTHING * (ratio - self._scale)

    def at_warm_up(self, num_rows: int) -> float:
        """Before any correction."""
        step_ms = self._between.get(num_rows)
        if step_ms is None:
            step_ms = self._between[num_rows] = self._table.at_one(num_rows)
        return step_ms


class TreeDeadline:
    """Twice (expected accepted length - 1) x the plain step's time, unless fixed.

    It is there to notice that something is wrong: past half of it plain decoding is faster, but whether trees are worth
    their time is the router's to say.
    """

    def __init__(self, times: StepTimes, window: AcceptanceWindow, *, fixed_ms: float | None) -> None:
        self._times = times
        self._window = window
        self._fixed_ms = fixed_ms

    def seconds(self, num_decoding: int) -> float:
        if self._fixed_ms is not None:
            return self._fixed_ms / 1e3
        measured = len(self._window) >= MIN_ROUNDS
        expected = self._window.mean_accepted_length() if measured else PRIOR_ACCEPTED_LENGTH
        return longest_wait_ms(expected, self._times.expect(max(num_decoding, 1))) / 1e3


def longest_wait_ms(accepted_length: float, plain_ms: float) -> float:
    """For trees of that expected length. plain_ms: of a step without trees."""
    return _SLACK * max(accepted_length - 1, MIN_GAIN) * plain_ms
