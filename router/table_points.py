"""TablePoints: how far a table is off at each of its points, as weights of a fit, and where anything was seen."""

from __future__ import annotations

import numpy as np

from paceline.step_table import Floats, StepTable
from router.cost_fit import Weight

POINT = Weight(0.0, 0.15, -0.9, 20_000.0)  # of one point: by what share the table is off there

_MEMORY = 100.0  # observations of a point
DOUBT = 0.1  # share that an expected time may be too long by, where nothing was seen
_DOUBT_SEEN = 8.0  # observations that halve it
_KNOWN = 4.0  # observations after which a point bounds smaller ones that were seen less often
_MORE_POINTS = np.array([2.0, 4, 8, 16, 32, 64, 128, 256, 512])  # past the last that was measured


class TablePoints:
    """A table's points, and some past its last: a machine that was busy at warm-up has measured small sizes alone."""

    def __init__(self, table: StepTable, *, doubt: float = DOUBT) -> None:
        """doubt: as DOUBT."""
        self._doubt = doubt
        self._points: Floats = np.append(table.rows, _MORE_POINTS[table.rows[-1] < _MORE_POINTS])
        self._ms: Floats = np.maximum(table.at(self._points), 1e-6)
        self._seen: Floats = np.zeros(len(self._points))

    def __len__(self) -> int:
        return len(self._points)

    def shares(self, x: float) -> Floats:
        """[points]: of each in what is between them, straight lines; they sum to 1."""
        shares = np.zeros(len(self._points))
        right = min(int(np.searchsorted(self._points, x)), len(self._points) - 1)
        left = max(right - 1, 0) if self._points[right] > x else right
        gap = float(self._points[right] - self._points[left])
        share = 1.0 if gap <= 0 else float(x - self._points[left]) / gap
        shares[left] += 1.0 - share
        shares[right] += share
        return shares

    def see(self, shares: Floats) -> None:
        """Something was observed there."""
        self._seen = np.minimum(self._seen + shares, _MEMORY)

    def fade(self, keep: float) -> None:
        """What was seen is worth so much of what it was."""
        self._seen *= keep

    def at(self, x: Floats, factors: Floats) -> Floats:
        """Of the shape of x: of [points], straight between."""
        between: Floats = np.interp(x, self._points, factors)
        return between

    def bounded(self, factors: Floats) -> Floats:
        """Of the table's times, the same where none takes longer than a larger one that is known and was seen as often.
        [points]"""
        ms = self._ms * factors
        known = self._seen >= np.maximum(self._seen, _KNOWN)[:, None]  # [points, larger ones]
        bounds = np.where(np.triu(known, 1), ms, np.inf).min(axis=1)
        bounded: Floats = np.minimum(ms, bounds) / self._ms
        return bounded

    def hopes(self, x: Floats) -> Floats:
        """Factors below 1 where little was seen: how short the time may turn out. [...], of the shape of x."""
        hopes: Floats = 1.0 - self._doubt * np.interp(x, self._points, _DOUBT_SEEN / (_DOUBT_SEEN + self._seen))
        return hopes
