"""CostModel: what a target's step and the wait for its trees take, at any rows, requests and growth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from paceline.types import TreeShape
from router.cost_fit import LeakyFit
from router.cost_tables import Floats, ProposeTable, StepTable
from router.local_ratios import LocalRatios

# Before they were seen: two messages and the threads that wake; and what each tree more costs the two hosts, of a step
# (plan, commit, ask) and of the way from the ask to the tree. One H200 at 1 to 32 requests: 0.09 and 0.07 ms a tree.
RPC_MS = 1.0
TREE_MS = 0.05

_FORGET = 0.01
_NOISE = 0.1  # of a time, relative
_LEAST_NOISE_MS = 0.1
_OUTLIER = 3.0  # times what was expected, at most: a pause of the machine teaches nothing
_LEAST_STEP = (0.1, -0.5, 0.0, 0.0, 0.0, 0.0)  # more work never makes a step shorter
_BESIDE = 0.5  # of a draft's time, give or take as much: what it takes from a step on its own host, before it was seen
_BESIDE_ELSEWHERE = 0.05
_PAST_DEADLINE = 1.25  # what a late tree is taken to have needed, at least
_REQUESTS = 256.0  # units of the features
_CONTEXT_TOKENS = 100_000.0


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step's time depends on besides its rows; of one shape that broadcasts with them."""

    requests: Floats | float  # that take part in it
    context_tokens: Floats | float
    trees: Floats | float = 0.0  # of these requests, those with more than one node
    beside_ms: Floats | float = 0.0  # that a draft is at work meanwhile, by its warm-up


class Costs(Protocol):
    """What times are asked of."""

    follow_ms: float  # that a prompt's token costs beside its step, where a draft follows it on the target's own host
    overlaps: bool  # the target may verify one half's trees while the other half's are drafted

    def step_ms(self, rows: Floats, batch: Batch) -> Floats:
        """Of a step with so many rows, prompt tokens included. [...], of the shape of rows."""

    def wait_ms(self, growth: TreeShape, sessions: Floats) -> Floats:
        """From the asks of so many sessions to their trees. [...], of the shape of sessions."""

    def draft_ms(self, growth: TreeShape, sessions: Floats) -> Floats:
        """That the draft is at work meanwhile, by its warm-up. [...], of the shape of sessions."""


class CostModel:
    """Calibrated by the services' warm-up, corrected by what steps and waits take in service.

    A step's time is the table's at its rows, times a scale, plus parts by requests and by trees (the host's work), by
    context tokens (attention) and by a draft's work beside it, all of which a LeakyFit keeps; a wait is the table's at
    its growth and sessions, scaled, plus RPC and what each session costs the hosts. Both times a local ratio: services
    that warm up at once on the same cores measure each other, and a step between two of a draft on the same cores finds
    its caches cold, so no scale makes a table right everywhere.
    """

    def __init__(
        self, steps: StepTable, proposals: ProposeTable, *, shares_host: bool = False, overlaps: bool = False
    ) -> None:
        """shares_host: what a draft computes is taken from the target."""
        self.shares_host = shares_host
        self.overlaps = overlaps
        self.follow_ms = proposals.row_ms if shares_host else 0.0
        self.steps = steps
        self.proposals = proposals
        beside = (_BESIDE, _BESIDE) if shares_host else (0.0, _BESIDE_ELSEWHERE)
        self._step_fit = LeakyFit(
            (1.0, 0.0, 0.0, 0.0, TREE_MS, beside[0]),
            (0.2, 0.2, 0.5, 0.5, TREE_MS, beside[1]),
            least=_LEAST_STEP,
            forget=_FORGET,
        )
        self._step_ratios = LocalRatios(steps)
        self._wait_fit = LeakyFit((1.0, RPC_MS, TREE_MS), (0.3, RPC_MS, TREE_MS), least=(0.1, 0.0, 0.0), forget=_FORGET)
        self._wait_ratios = {growth: LocalRatios(proposals.of(growth)) for growth in proposals.growths}
        self.hopeful: Costs = _Hopeful(self, self._step_ratios, self._wait_ratios)

    def step_ms(self, rows: Floats, batch: Batch) -> Floats:
        scale, constant, by_requests, by_context, by_trees, beside = self._step_fit.weights
        unit = self.steps.one_row_ms
        rest = constant + by_requests / _REQUESTS * batch.requests + by_context / _CONTEXT_TOKENS * batch.context_tokens
        table = self.steps.at(rows)
        expected = scale * table + unit * rest + by_trees * batch.trees + beside * batch.beside_ms
        ms: Floats = np.maximum(expected, table / _OUTLIER) * self._step_ratios.at(rows)
        return ms

    def wait_ms(self, growth: TreeShape, sessions: Floats) -> Floats:
        scale, rpc_ms, by_sessions = self._wait_fit.weights
        table = self.proposals.of(growth).at(sessions)
        expected = scale * table + rpc_ms + by_sessions * sessions
        ms: Floats = np.maximum(expected, table / _OUTLIER) * self._wait_ratios[growth].at(sessions)
        return ms

    def draft_ms(self, growth: TreeShape, sessions: Floats) -> Floats:
        return self.proposals.of(growth).at(sessions)

    def observe_step(self, rows: int, batch: Batch, step_ms: float) -> None:
        """A step that ran; prompt tokens are rows as well. One beside a draft's work says nothing of its size alone."""
        table, unit = self.steps.at_one(rows), self.steps.one_row_ms
        features = (
            table,
            unit,
            unit * float(batch.requests / _REQUESTS),
            unit * float(batch.context_tokens / _CONTEXT_TOKENS),
            float(batch.trees),
            float(batch.beside_ms),
        )
        part = _Part(self._step_fit, self._step_ratios, table / _OUTLIER, is_local=not batch.beside_ms)
        _observe(part, rows, features, step_ms)

    def observe_wait(self, growth: TreeShape, sessions: int, wait_ms: float) -> None:
        """From the asks to the trees, all of one growth."""
        table = self.proposals.of(growth).at_one(sessions)
        part = _Part(self._wait_fit, self._wait_ratios[growth], table / _OUTLIER)
        _observe(part, sessions, (table, 1.0, float(sessions)), wait_ms)

    def observe_late(self, growth: TreeShape, sessions: int, wait_ms: float) -> None:
        """A wait that was given up: the trees would have taken longer, by how much nobody knows."""
        least_ms = _PAST_DEADLINE * wait_ms
        if float(self.wait_ms(growth, np.array([float(sessions)]))[0]) < least_ms:
            self.observe_wait(growth, sessions, least_ms)


class _Hopeful:
    """The same costs as short as they may turn out to be."""

    def __init__(self, costs: CostModel, steps: LocalRatios, waits: Mapping[TreeShape, LocalRatios]) -> None:
        self.follow_ms = costs.follow_ms
        self.overlaps = costs.overlaps
        self._costs = costs
        self._steps = steps
        self._waits = waits

    def step_ms(self, rows: Floats, batch: Batch) -> Floats:
        ms: Floats = self._costs.step_ms(rows, batch) * self._steps.hopes(rows)
        return ms

    def wait_ms(self, growth: TreeShape, sessions: Floats) -> Floats:
        ms: Floats = self._costs.wait_ms(growth, sessions) * self._waits[growth].hopes(sessions)
        return ms

    def draft_ms(self, growth: TreeShape, sessions: Floats) -> Floats:
        return self._costs.draft_ms(growth, sessions)


@dataclass(frozen=True, slots=True)
class _Part:
    """least_ms: that its fit can be expected to give. is_local: the ratios learn, too."""

    fit: LeakyFit
    ratios: LocalRatios
    least_ms: float
    is_local: bool = True


def _observe(part: _Part, x: float, features: tuple[float, ...], ms: float) -> None:
    """Both learn at once, each the share of the surprise that its own doubt explains."""
    factor, local = part.ratios.at_one(x), part.ratios.variance(x)
    expected = max(part.fit.expect(features), part.least_ms)
    value = min(max(ms / factor, expected / _OUTLIER), expected * _OUTLIER)
    noise = _NOISE + _LEAST_NOISE_MS / expected
    common = part.fit.variance(features) / expected**2
    if part.is_local:
        part.ratios.observe(x, value / expected, gain=local / (local + common + noise**2))
    part.fit.observe(features, value, noise=expected * (noise**2 + local) ** 0.5)
