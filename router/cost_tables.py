"""What steps and proposals take, as the services measured it when they warmed up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.types import TreeShape

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StepTable:
    """Milliseconds of a target's step by its rows; straight lines between, and past the last two points."""

    rows: Floats  # ascending
    ms: Floats

    @classmethod
    def of(cls, times: Iterable[tuple[int, float]]) -> StepTable:
        """times: rows and milliseconds, at least one pair. More rows never count as less work."""
        pairs = sorted(times)
        return cls(np.array([float(rows) for rows, _ in pairs]), np.maximum.accumulate([ms for _, ms in pairs]))

    @property
    def one_row_ms(self) -> float:
        return float(self.ms[0])

    def at(self, rows: Floats) -> Floats:
        """The shape of rows."""
        inside: Floats = np.interp(rows, self.rows, self.ms)
        if len(self.rows) == 1:
            return inside
        slope = (self.ms[-1] - self.ms[-2]) / (self.rows[-1] - self.rows[-2])
        beyond: Floats = inside + slope * np.maximum(rows - self.rows[-1], 0.0)
        return beyond


@dataclass(frozen=True, slots=True)
class ProposeTable:
    """Milliseconds from a batch of asks to its trees, by growth and number of sessions."""

    times: Mapping[TreeShape, StepTable]  # by sessions instead of rows

    @classmethod
    def of(cls, times: Iterable[tuple[TreeShape, int, float]]) -> ProposeTable:
        """times: growth, sessions and milliseconds; any order."""
        groups: dict[TreeShape, list[tuple[int, float]]] = {}
        for growth, sessions, ms in times:
            groups.setdefault(growth, []).append((sessions, ms))
        return cls({growth: StepTable.of(pairs) for growth, pairs in groups.items()})

    @property
    def growths(self) -> Sequence[TreeShape]:
        return tuple(self.times)

    def at(self, growth: TreeShape, sessions: Floats) -> Floats:
        """The shape of sessions. The growth is one of ``growths``."""
        return self.times[growth].at(sessions)
