"""How fast a machine was while a sweep's points were measured, one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.simulated_steps import PARTS, Points, seen_steps
from bench.simulated_world import World

_NEAR = 1  # points before and after that tell of a point's time as well
_FADES = 0.2  # how much less each next one does
_FAR_OFF = 2.0  # a step that took more than that times what was expected, or that part of it, counts as that


def paces(calibration: dict[str, Any], points: Points, world: World) -> list[float]:
    """Of each point: what its steps and those of its neighbours in time took over what such steps take on average.

    Other work on the same host comes and goes within minutes, and no policy has part in it.
    """
    logs, counts = zip(*(_log_pace(calibration, point, world) for point in points), strict=True)
    distances = np.abs(np.subtract.outer(np.arange(len(points)), np.arange(len(points))))
    weights = np.where(distances <= _NEAR, _FADES**distances, 0.0) * np.array(counts)
    totals = weights.sum(axis=1)
    means = np.divide(weights @ np.array(logs), totals, out=np.zeros(len(points)), where=totals > 0)
    paces: list[float] = np.exp(means).tolist()
    return paces


def _log_pace(calibration: dict[str, Any], point: dict[str, Any], world: World) -> tuple[float, int]:
    """And by how many steps."""
    parts = np.array([getattr(world, name) for name in PARTS])
    steps = list(seen_steps(calibration, point, world.proposals))
    if not steps:
        return 0.0, 0
    taken = np.array([one.step.step_ms for one in steps])
    expected = np.array([world.steps.at_one(one.step.rows) + float(parts @ one.features) for one in steps])
    return float(np.log(np.clip(taken, expected / _FAR_OFF, expected * _FAR_OFF).sum() / expected.sum())), len(steps)
