"""LocalRatios: how far a table is off at each of its points, beyond what a common scale explains."""

from __future__ import annotations

import numpy as np

from router.cost_tables import Floats, StepTable

_STD = 0.15  # of a point's logarithm, before it was seen
_NOISE = 0.15  # of one observation, in the logarithm
_MEMORY = 100.0  # observations of a point
_DOUBT = 0.1  # share that an expected time may be too long by, where nothing was seen
_DOUBT_SEEN = 8.0  # observations that halve it
_KNOWN = 4.0  # observations after which a point bounds smaller ones that were seen less often
_MORE_POINTS = np.array([2.0, 4, 8, 16, 32, 64, 128, 256, 512])  # past the last that was measured


class LocalRatios:
    """Logarithms of ratios at the points of a table, straight between; each learns from what is seen beside it.

    A point keeps what it learnt while others are used: what plain steps take is known through a long time of trees.
    It takes no longer than a larger one that is known and was seen as often. A machine that was busy at warm-up has
    measured small sizes alone: the points go on past them.
    """

    def __init__(self, table: StepTable) -> None:
        self._points: Floats = np.append(table.rows, _MORE_POINTS[table.rows[-1] < _MORE_POINTS])
        self._log_ms: Floats = np.log(np.maximum(table.at(self._points), 1e-6))
        self._logs: Floats = np.zeros(len(self._points))  # learnt
        self._used: Floats = self._logs  # these, within their bounds
        self._seen: Floats = np.zeros(len(self._points))

    def at(self, x: Floats) -> Floats:
        """Factors, [...], of the shape of x."""
        factors: Floats = np.exp(np.interp(x, self._points, self._used))
        return factors

    def hopes(self, x: Floats) -> Floats:
        """Factors below 1 where little was seen: how short the time may turn out. [...], of the shape of x."""
        hopes: Floats = 1.0 - _DOUBT * np.interp(x, self._points, _DOUBT_SEEN / (_DOUBT_SEEN + self._seen))
        return hopes

    def at_one(self, x: float) -> float:
        """``at`` of one number."""
        return float(np.exp(np.interp(x, self._points, self._used)))

    def variance(self, x: float) -> float:
        """Of the logarithm there."""
        seen = float(np.interp(x, self._points, self._seen))
        return 1.0 / (_STD**-2 + seen / _NOISE**2)

    def observe(self, x: float, ratio: float, *, gain: float) -> None:
        """ratio: what was seen over all that was expected, this factor included. gain: the share that is learnt.

        It follows the mean, as the common scale does: a logarithm would follow the median of times with a long tail,
        and the two would drift apart.
        """
        right = min(int(np.searchsorted(self._points, x)), len(self._points) - 1)
        left = max(right - 1, 0) if self._points[right] > x else right
        gap = float(self._points[right] - self._points[left])
        share = 1.0 if gap <= 0 else float(x - self._points[left]) / gap
        total = share**2 + (1.0 - share) ** 2
        for point, weight in {left: 1.0 - share, right: share}.items():
            self._logs[point] += gain * weight / total * (ratio - 1.0)
            self._seen[point] = min(self._seen[point] + weight, _MEMORY)
        known = self._seen >= np.maximum(self._seen, _KNOWN)[:, None]  # [points, larger ones]
        bounds = np.where(np.triu(known, 1), self._logs + self._log_ms, np.inf).min(axis=1) - self._log_ms
        self._used = np.minimum(self._logs, bounds)
