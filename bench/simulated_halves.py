"""SimHalves: whether a simulated target verifies a round's trees at once or in halves, by target_service's rule."""

from __future__ import annotations

from bench.simulated_world import World
from paceline.types import TreeShape

GAP_MS = 0.2  # between two steps of which the second was launched before the first was over
_SMOOTHING = 0.1
_GAIN = 1.03  # the other way must be that much shorter
_DWELL_STEPS = 24  # between two changes, at least
_LEAST_TREES = 4


class SimHalves:
    """What the real target measures of either way is known here: the choice is by the world's times."""

    def __init__(self, world: World) -> None:
        self.is_split = False
        self._world = world
        self._rows = 0.0  # of a whole round, and its trees; averages
        self._trees = 0.0
        self._steps = _DWELL_STEPS  # with trees, since the last change

    def observe(self, rows: int, trees: int, shape: TreeShape) -> None:
        """One step with trees; shape: of one of them."""
        if not self._world.overlaps:
            return
        self._steps += 1
        whole = 2 if self.is_split else 1
        smoothing = _SMOOTHING if self._rows else 1.0
        self._rows += smoothing * (whole * rows - self._rows)
        self._trees += smoothing * (whole * trees - self._trees)
        if self._steps < _DWELL_STEPS:
            return
        at_once, apart = self._rounds_ms(shape)
        if self.is_split:
            changes = self._trees < _LEAST_TREES or at_once * _GAIN < apart
        else:
            changes = self._trees >= _LEAST_TREES and apart * _GAIN < at_once
        if changes:
            self.is_split, self._steps = not self.is_split, 0

    def _rounds_ms(self, shape: TreeShape) -> tuple[float, float]:
        """What a round takes at once, and in halves."""
        world, rows, trees = self._world, self._rows, self._trees
        host_ms = world.host_ms(round(trees), round(trees))
        taken = world.share_taken(round(rows / 2)) * world.draft_ms({shape: round(trees / 2)})
        half = world.steps.at_one(rows / 2) + taken
        half_trees = world.turnaround_ms({shape: round(trees / 2)})
        at_once = world.steps.at_one(rows) + host_ms + world.turnaround_ms({shape: round(trees)})
        return at_once, max(2 * (half + GAP_MS), half + host_ms + half_trees)
