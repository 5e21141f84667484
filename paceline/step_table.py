"""What a step takes by its rows, as a service measured it at warm-up: the target's own view and the router's."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class StepTable:
    """Milliseconds of a step by its rows; straight lines between, and past the last two points. Immutable.

    A step is measured too long, where something else used the machine, and never too short: so one of fewer rows takes
    no longer than what was measured of any with more.
    """

    def __init__(self, times: Iterable[tuple[float, float]]) -> None:
        """times: rows and milliseconds, at least one pair."""
        pairs = sorted(times)
        self.rows: Floats = np.array([float(rows) for rows, _ in pairs])
        self.ms: Floats = np.minimum.accumulate([float(ms) for _, ms in reversed(pairs)])[::-1].copy()
        self._xs, self._ys = self.rows.tolist(), self.ms.tolist()

    @property
    def one_row_ms(self) -> float:
        """Of the smallest step."""
        return float(self._ys[0])

    @property
    def slope(self) -> float:
        """Milliseconds a row between the last two points; 0 where there is one."""
        if len(self._xs) == 1:
            return 0.0
        return float((self._ys[-1] - self._ys[-2]) / (self._xs[-1] - self._xs[-2]))

    def at(self, rows: Floats) -> Floats:
        """[...], of the shape of rows."""
        ms: Floats = np.interp(rows, self.rows, self.ms) + self.slope * np.maximum(rows - self._xs[-1], 0.0)
        return ms

    def at_one(self, rows: float) -> float:
        """``at`` of one number, in a tenth of its time."""
        xs, ys = self._xs, self._ys
        if len(xs) == 1 or rows <= xs[0]:
            return float(ys[0])
        right = min(bisect.bisect_left(xs, rows), len(xs) - 1)
        x, y = xs[right - 1], ys[right - 1]
        return float(y + (ys[right] - y) / (xs[right] - x) * (rows - x))
