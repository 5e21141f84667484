"""CostModel: what a target's step and the wait for its trees take, at any rows, requests and growth."""

from __future__ import annotations

import math
from typing import Protocol

from paceline.step_table import Floats, StepTable
from paceline.types import TreeShape
from router.cost_tables import ProposeTable
from router.step_costs import Batch, StepCosts
from router.table_points import DOUBT
from router.track_record import TrackRecord
from router.tree_costs import TreeCosts

_DOUBT_OF_SHARED_CORES = 0.5  # while others were at work on two cores, ways took up to three times as long
_KNOWN_S = 5.0  # over which what was seen of ways there fades


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
        self._has_one_pace = shares_host and not overlaps  # the same cores compute both
        self.follow_ms = proposals.row_ms if shares_host else 0.0
        self.steps = StepCosts(steps, shares_host=shares_host)
        self.trees = TreeCosts(
            proposals, shares_host=shares_host, doubt=_DOUBT_OF_SHARED_CORES if self._has_one_pace else DOUBT
        )
        self._looked_s: float | None = None
        self.record = TrackRecord()
        self.hopeful: Costs = _Hopeful(self)

    def look(self, now_s: float) -> None:
        """Lets what was seen long ago fade. Of cores that others share as well, ways are not known for long: what they
        lose to others, who hold up each message, they do not tell while no tree is asked for."""
        self.record.look(now_s)
        if self._has_one_pace and self._looked_s is not None:
            self.trees.fade(math.exp(-max(0.0, now_s - self._looked_s) / _KNOWN_S))
        self._looked_s = now_s

    @property
    def tree_ms(self) -> float:
        return self.steps.tree_ms

    @property
    def wait_spread(self) -> float:
        return self.trees.spread

    def step_ms(self, rows: Floats, batch: Batch) -> Floats:
        return self.steps.ms(rows, batch)

    def wait_ms(self, growth: TreeShape, sessions: Floats, nodes: Floats | float, *, beside: float = 0.0) -> Floats:
        return self._pace * self.trees.ms(growth, sessions, nodes, beside)

    def observe_way(
        self, growth: TreeShape, sessions: int, nodes: float, ms: float, *, beside: float, is_late: bool = False
    ) -> None:
        """One way from asks to trees, as ``TreeCosts.observe`` has it. is_late: it was given up after so long."""
        observe = self.trees.observe_late if is_late else self.trees.observe
        observe(growth, sessions, nodes, ms / self._pace, beside=beside)

    @property
    def _pace(self) -> float:
        """What ways are to be multiplied by. Where the same cores compute drafts and steps, ways are known in times of
        steps: that these turn faster or slower while nothing is drafted holds for drafts as well."""
        return self.steps.scale if self._has_one_pace else 1.0

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
