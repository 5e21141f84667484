"""CostModel: what a target's step and the wait for its trees take, at any rows, requests and growth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.types import TreeShape
from router.cost_fit import LeakyFit
from router.cost_tables import Floats, ProposeTable, StepTable

RPC_MS = 1.0  # two messages and the threads that wake, before it was seen

_FORGET = 0.02
_NOISE = 0.1  # of a time, relative
_LEAST_NOISE_MS = 0.1
_OUTLIER = 3.0  # times what was expected, at most: a pause of the machine teaches nothing
_REQUESTS = 256.0  # units of the features
_CONTEXT_TOKENS = 100_000.0


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step's time depends on besides its rows; of one shape that broadcasts with them."""

    requests: Floats | float  # that take part in it
    context_tokens: Floats | float


class CostModel:
    """Calibrated by the services' warm-up, corrected by what steps take.

    A step's time is the table's at its rows, times a scale, plus parts by requests (the host's work) and by context
    tokens (attention), all of which a LeakyFit keeps. A wait is the table's at its growth and sessions, scaled,
    and RPC.
    """

    def __init__(self, steps: StepTable, proposals: ProposeTable) -> None:
        self.steps = steps
        self.proposals = proposals
        self._step_fit = LeakyFit((1.0, 0.0, 0.0, 0.0), (0.1, 0.3, 0.5, 0.5), forget=_FORGET)
        self._wait_fit = LeakyFit((1.0, RPC_MS), (0.3, RPC_MS), forget=_FORGET)

    def step_ms(self, rows: Floats, batch: Batch) -> Floats:
        """[...], of the shape of rows."""
        scale, constant, by_requests, by_context = self._step_fit.weights
        unit = self.steps.one_row_ms
        rest = constant + by_requests / _REQUESTS * batch.requests + by_context / _CONTEXT_TOKENS * batch.context_tokens
        table = self.steps.at(rows)
        ms: Floats = np.maximum(scale * table + unit * rest, table / _OUTLIER)
        return ms

    def wait_ms(self, growth: TreeShape, sessions: Floats) -> Floats:
        """From a step's end to the trees of so many sessions. [...], of the shape of sessions."""
        scale, rpc_ms = self._wait_fit.weights
        table = self.proposals.of(growth).at(sessions)
        ms: Floats = np.maximum(scale * table + rpc_ms, table / _OUTLIER)
        return ms

    def observe_step(self, rows: int, batch: Batch, step_ms: float) -> None:
        """A step that ran; prompt tokens are rows as well."""
        table, unit = self.steps.at_one(rows), self.steps.one_row_ms
        by_context = batch.context_tokens / _CONTEXT_TOKENS
        features = (table, unit, unit * float(batch.requests / _REQUESTS), unit * float(by_context))
        _observe(self._step_fit, features, step_ms, least=table / _OUTLIER)

    def observe_wait(self, growth: TreeShape, sessions: int, wait_ms: float) -> None:
        """A wait for trees alone, all of one growth."""
        table = self.proposals.of(growth).at_one(sessions)
        _observe(self._wait_fit, (table, 1.0), wait_ms, least=table / _OUTLIER)


def _observe(fit: LeakyFit, features: tuple[float, ...], ms: float, *, least: float) -> None:
    """least: of what can be expected."""
    expected = max(fit.expect(features), least)
    value = min(max(ms, expected / _OUTLIER), expected * _OUTLIER)
    fit.observe(features, value, noise=_NOISE * expected + _LEAST_NOISE_MS)
