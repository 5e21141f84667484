"""StepCosts: what a target's step takes: its warm-up's table, corrected by the steps that ran."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.step_table import Floats, StepTable
from router.cost_fit import LEAST_FACTOR, LEAST_NOISE_MS, OUTLIER, DriftingFit, Weight
from router.table_points import POINT, TablePoints

# Before it was seen: what each tree costs the target's host (plan, commit, ask), and what all together do: a step with
# trees is not launched behind another one. One H200, 1 to 32 requests: 0.09 and 0.5 ms.
TREE_MS = 0.05
TREES_MS = 0.3

_NOISE = 0.1  # of a time, relative
_MEMORY = 2000.0  # observations
_BESIDE, _BESIDE_STD = 0.5, 0.75  # of a draft's time: what it takes from a step on its host, before it was seen
_BESIDE_ELSEWHERE = 0.05
_POINTS = 7  # weights before those of the table's points
_REQUESTS = 256.0  # units of the features
_CONTEXT_TOKENS = 100_000.0


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step's time depends on besides its rows; of one shape that broadcasts with them."""

    requests: Floats | float  # that take part in it
    context_tokens: Floats | float
    trees: Floats | float = 0.0  # of these requests, those with more than one node
    beside_ms: Floats | float = 0.0  # that a draft is at work meanwhile, by its warm-up


class StepCosts:
    """The table's time at a step's rows, times a scale, plus parts by requests, by trees and for any trees (the host's
    work), by context tokens (attention) and by a draft's work beside it; and at each of the table's points by what
    share that is off: services that warm up at once on the same cores measure each other, so no scale makes a table
    right everywhere.

    A step beside a draft's work is launched while another one runs: what its trees cost the host does not show.
    """

    def __init__(self, table: StepTable, *, shares_host: bool) -> None:
        self.table = table
        self._unit = table.one_row_ms
        self._points = TablePoints(table)
        beside = (_BESIDE, _BESIDE_STD) if shares_host else (0.0, _BESIDE_ELSEWHERE)
        self._fit = DriftingFit(
            [
                Weight(1.0, 0.2, 0.1, _MEMORY),
                Weight(0.0, 0.2, -0.5, _MEMORY),
                Weight(0.0, 0.5, 0.0, _MEMORY),
                Weight(0.0, 0.5, 0.0, _MEMORY),
                Weight(TREE_MS, TREE_MS, 0.0, _MEMORY),
                Weight(TREES_MS, TREES_MS, 0.0, _MEMORY),
                Weight(*beside, 0.0, _MEMORY),
                *[POINT] * len(self._points),
            ]
        )

    @property
    def scale(self) -> float:
        """Of all times over the table's: how slow the machine is by now."""
        return float(self._fit.weights[0])

    @property
    def tree_ms(self) -> float:
        """That each tree costs the host."""
        return float(self._fit.weights[4])

    def ms(self, rows: Floats, batch: Batch, *, hopeful: bool = False) -> Floats:
        """hopeful: a draft's work beside a step takes as little as it may, by what is known of it."""
        scale, constant, by_requests, by_context, by_trees, with_trees, beside = self._fit.weights[:_POINTS].tolist()
        if hopeful:
            beside = max(0.0, beside - self._fit.std(_POINTS - 1))
        rest = constant + by_requests / _REQUESTS * batch.requests + by_context / _CONTEXT_TOKENS * batch.context_tokens
        table = self.table.at(rows)
        host = by_trees * batch.trees + with_trees * np.minimum(batch.trees, 1.0)
        host = np.where(np.asarray(batch.beside_ms) > 0.0, 0.0, host)
        factors = self._points.bounded(np.maximum(scale + self._fit.weights[_POINTS:], LEAST_FACTOR))
        expected = self._points.at(rows, factors) * table + self._unit * rest + host + beside * batch.beside_ms
        ms: Floats = np.maximum(expected, LEAST_FACTOR * table)
        return ms

    def hopes(self, rows: Floats) -> Floats:
        """Factors below 1: how short steps may turn out that were hardly seen. [...], of the shape of rows."""
        return self._points.hopes(rows)

    def observe(self, rows: int, batch: Batch, step_ms: float) -> None:
        """A step that ran; prompt tokens are rows as well."""
        table, unit, shares = self.table.at_one(rows), self._unit, self._points.shares(rows)
        parts = (
            table,
            unit,
            unit * float(batch.requests / _REQUESTS),
            unit * float(batch.context_tokens / _CONTEXT_TOKENS),
            0.0 if batch.beside_ms else float(batch.trees),
            0.0 if batch.beside_ms else min(float(batch.trees), 1.0),
            float(batch.beside_ms),
        )
        features = np.concatenate([parts, table * shares])
        expected = max(self._fit.expect(features), LEAST_FACTOR * table)
        value = min(max(step_ms, expected / OUTLIER), expected * OUTLIER)
        self._fit.observe(features, value, noise=_NOISE * expected + LEAST_NOISE_MS)
        self._points.see(shares)
