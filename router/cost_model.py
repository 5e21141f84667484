"""CostModel: what a target's step and the wait for its trees take, at any rows, requests and growth."""

from __future__ import annotations

from typing import Protocol

from paceline.step_table import Floats, StepTable
from paceline.types import TreeShape
from router.cost_tables import ProposeTable
from router.step_costs import Batch, StepCosts
from router.track_record import TrackRecord
from router.tree_costs import TreeCosts


class Costs(Protocol):
    """What times are asked of."""

    follow_ms: float  # that a prompt's token costs beside its step, where a draft follows it on the target's own host
    overlaps: bool  # the target may verify one half's trees while the other half's are drafted
    record: TrackRecord  # what choices gave over what these times promise of them

    def step_ms(self, rows: Floats, batch: Batch) -> Floats:
        """Of a step with so many rows, prompt tokens included. [...], of the shape of rows."""

    def wait_ms(self, growth: TreeShape, sessions: Floats, nodes: Floats | float, *, beside: float = 0.0) -> Floats:
        """From the asks of so many sessions to their trees, of so many nodes on average. beside: share of it in which a
        step runs. [...], of the shape of sessions, with which nodes broadcast."""

    def draft_ms(self, growth: TreeShape, sessions: Floats) -> Floats:
        """That the draft is at work meanwhile, by its warm-up. [...], of the shape of sessions."""

    @property
    def tree_ms(self) -> float:
        """That each tree costs the target's host, of a step or where that is hidden between two."""

    @property
    def wait_spread(self) -> float:
        """Standard deviation of waits around what is expected, relative."""


class CostModel:
    """Calibrated by the services' warm-up, corrected by what steps and waits take in service."""

    def __init__(
        self, steps: StepTable, proposals: ProposeTable, *, shares_host: bool = False, overlaps: bool = False
    ) -> None:
        """shares_host: what a draft computes is taken from the target."""
        self.shares_host = shares_host
        self.overlaps = overlaps
        self.follow_ms = proposals.row_ms if shares_host else 0.0
        self.steps = StepCosts(steps, shares_host=shares_host)
        self.trees = TreeCosts(proposals, shares_host=shares_host)
        self.record = TrackRecord()
        self.hopeful: Costs = _Hopeful(self)

    @property
    def tree_ms(self) -> float:
        return self.steps.tree_ms

    @property
    def wait_spread(self) -> float:
        return self.trees.spread

    def step_ms(self, rows: Floats, batch: Batch) -> Floats:
        return self.steps.ms(rows, batch)

    def wait_ms(self, growth: TreeShape, sessions: Floats, nodes: Floats | float, *, beside: float = 0.0) -> Floats:
        return self.trees.ms(growth, sessions, nodes, beside)

    def draft_ms(self, growth: TreeShape, sessions: Floats) -> Floats:
        return self.trees.proposals.of(growth).at(sessions)


class _Hopeful:
    """The same costs as short as they may turn out to be."""

    def __init__(self, costs: CostModel) -> None:
        self.follow_ms = costs.follow_ms
        self.overlaps = costs.overlaps
        self.record = costs.record.hopeful()
        self._costs = costs

    @property
    def tree_ms(self) -> float:
        return self._costs.tree_ms

    @property
    def wait_spread(self) -> float:
        return self._costs.wait_spread

    def step_ms(self, rows: Floats, batch: Batch) -> Floats:
        ms: Floats = self._costs.steps.ms(rows, batch, hopeful=True) * self._costs.steps.hopes(rows)
        return ms

    def wait_ms(self, growth: TreeShape, sessions: Floats, nodes: Floats | float, *, beside: float = 0.0) -> Floats:
        known = self._costs.wait_ms(growth, sessions, nodes, beside=beside)
        ms: Floats = known * self._costs.trees.hopes(growth, sessions)
        return ms

    def draft_ms(self, growth: TreeShape, sessions: Floats) -> Floats:
        return self._costs.draft_ms(growth, sessions)
