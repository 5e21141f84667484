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
_OUTLIER = 3.0  # times what was expected, at most: a pause of the machine teaches nothing
_REQUESTS = 256.0  # units of the features
_CONTEXT_TOKENS = 100_000.0


@dataclass(frozen=True, slots=True)
class StepSeen:
    """What one step of a target was and took."""

    rows: int  # prompt tokens included
    requests: int  # that took part in it
    context_tokens: int
    step_ms: float


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step's time depends on besides its rows; of one shape that broadcasts with them."""

    requests: Floats | float
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
        self._step_fit = LeakyFit(np.array([1.0, 0.0, 0.0, 0.0]), np.array([0.1, 0.3, 0.5, 0.5]), forget=_FORGET)
        self._wait_fit = LeakyFit(np.array([1.0, RPC_MS]), np.array([0.3, RPC_MS]), forget=_FORGET)

    def step_ms(self, rows: Floats, batch: Batch) -> Floats:
        """The shape of rows."""
        scale, constant, by_requests, by_context = self._step_fit.weights.tolist()
        unit = self.steps.one_row_ms
        rest = constant + by_requests * batch.requests / _REQUESTS + by_context * batch.context_tokens / _CONTEXT_TOKENS
        table = self.steps.at(rows)
        ms: Floats = np.maximum(scale * table + unit * rest, table / _OUTLIER)
        return ms

    def wait_ms(self, growth: TreeShape, sessions: Floats) -> Floats:
        """From a step's end to the trees of so many sessions. The shape of sessions."""
        scale, rpc_ms = self._wait_fit.weights.tolist()
        table = self.proposals.at(growth, sessions)
        ms: Floats = np.maximum(scale * table + rpc_ms, table / _OUTLIER)
        return ms

    def observe_step(self, seen: StepSeen) -> None:
        """A step that ran."""
        unit = self.steps.one_row_ms
        rows = np.array([float(seen.rows)])
        table = float(self.steps.at(rows)[0])
        features = np.array(
            [table, unit, unit * seen.requests / _REQUESTS, unit * seen.context_tokens / _CONTEXT_TOKENS]
        )
        expected = float(self.step_ms(rows, Batch(seen.requests, seen.context_tokens))[0])
        value = float(np.clip(seen.step_ms, expected / _OUTLIER, expected * _OUTLIER))
        self._step_fit.observe(features, value, noise=_NOISE * expected)

    def observe_wait(self, growth: TreeShape, sessions: int, wait_ms: float) -> None:
        """A wait for trees alone, all of one growth."""
        at = np.array([float(sessions)])
        expected = float(self.wait_ms(growth, at)[0])
        value = float(np.clip(wait_ms, 0.0, expected * _OUTLIER))
        features = np.array([float(self.proposals.at(growth, at)[0]), 1.0])
        self._wait_fit.observe(features, value, noise=_NOISE * expected + 0.1 * RPC_MS)
