"""Bounds: the batch sizes that each row of a plan serves, and the ladders that tell them to a target."""

from __future__ import annotations

import numpy as np

from paceline.step_table import Floats
from paceline.types import Rung
from router.acceptance import Ints
from router.plan_rows import BATCHES, row_at
from router.shape_menu import ShapeMenu

Ladder = tuple[Rung, ...]

_BAND = 0.25  # a batch that swings by this share around where it was planned keeps its rung


class Bounds:
    """Rows change half-way between their batch sizes, but not within a band around the anchor. Immutable."""

    def __init__(self, anchor: float) -> None:
        """anchor: the batch size that the plan is made for."""
        most = np.append(np.floor(np.sqrt(BATCHES[:-1] * BATCHES[1:])), np.inf)
        row = row_at(anchor)
        low = np.floor((1.0 - _BAND) * anchor)
        high = np.ceil((1.0 + _BAND) * anchor)
        most[:row] = np.minimum(most[:row], max(low - 1.0, 0.0))
        most[row:] = np.maximum(most[row:], high)
        self._most: Floats = most  # [rows]: the largest batch that each serves

    def row(self, batch: float) -> int:
        """The row in force at a batch size."""
        return int(np.searchsorted(self._most, batch))

    def keeps(self, batch: float, shapes: Ints) -> bool:
        """Whether a batch that swings by the band keeps its shapes. shapes: [rows, levels]."""
        low, high = (self.row(factor * batch) for factor in (1.0 - _BAND, 1.0 + _BAND))
        return bool((shapes[low : high + 1] == shapes[low]).all())

    def ladder(self, shapes: Ints, menu: ShapeMenu) -> Ladder:
        """Of one skill. shapes: [rows], each an index of the menu, or OFF."""
        rungs: list[Rung] = []
        for bound, index in zip(self._most.tolist(), shapes.tolist(), strict=True):
            shape = menu.shape(index)
            most = 0 if bound == np.inf else int(bound)
            if bound < 1.0:
                continue
            if rungs and rungs[-1].shape == shape:
                rungs[-1] = Rung(most, shape)
            elif not rungs or rungs[-1].max_running_requests < most or most == 0:
                rungs.append(Rung(most, shape))
        return tuple(rungs[:-1]) if rungs[-1].shape is None else tuple(rungs)
