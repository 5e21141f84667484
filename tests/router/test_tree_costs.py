"""The wait for trees: by their nodes, by the machine's pace, and how long what was seen of it is believed."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.step_table import StepTable
from paceline.types import TreeShape
from router.cost_model import CostModel
from router.cost_tables import ProposeTable
from router.step_costs import Batch

CHAIN, TREE = TreeShape(3, 1, 4), TreeShape(5, 4, 16)
STEPS = StepTable([(1, 5.0), (64, 6.0), (256, 9.0)])
PROPOSALS = ProposeTable([(CHAIN, 1, 0.8), (CHAIN, 64, 1.2), (TREE, 1, 1.2), (TREE, 64, 2.2)])


def waits(costs: CostModel, growth: TreeShape, sessions: float, nodes: float) -> float:
    return float(costs.wait_ms(growth, np.array([sessions]), nodes)[0])


def hope(costs: CostModel) -> float:
    """The share of an expected wait that it takes at least."""
    return float(costs.hopeful.wait_ms(CHAIN, np.array([8.0]), 4.0)[0]) / waits(costs, CHAIN, 8, 4)


def seen(*, overlaps: bool) -> CostModel:
    """One that saw 100 ways of a chain, and steps by the table, on one host."""
    costs = CostModel(STEPS, PROPOSALS, shares_host=True, overlaps=overlaps)
    for _ in range(100):
        costs.steps.observe(8, Batch(8, 0), STEPS.at_one(8))
        costs.observe_way(CHAIN, 8, 4, 3.0, beside=0.0)
    assert waits(costs, CHAIN, 8, 4) == pytest.approx(3.0, rel=0.05)
    return costs


def test_what_nodes_cost_is_learnt_from_wide_trees_and_makes_narrow_ones_and_other_growths_shorter() -> None:
    def truth(growth: TreeShape, sessions: int, nodes: int) -> float:
        return PROPOSALS.of(growth).at_one(sessions) + 0.4 + (0.01 + 0.006 * nodes) * sessions

    costs = CostModel(STEPS, PROPOSALS)
    for _ in range(30):
        for sessions, nodes in ((8, 16), (32, 16), (32, 8), (8, 8)):
            costs.trees.observe(TREE, sessions, nodes, truth(TREE, sessions, nodes), beside=0.0)
    assert waits(costs, TREE, 32, 4) == pytest.approx(truth(TREE, 32, 4), rel=0.08)
    assert waits(costs, CHAIN, 32, 4) == pytest.approx(truth(CHAIN, 32, 4), rel=0.15)


def test_where_the_same_cores_compute_both_a_machine_that_turns_slow_is_slow_for_drafts_as_well() -> None:
    one_pace, two_paces = seen(overlaps=False), seen(overlaps=True)
    for costs in (one_pace, two_paces):
        for _ in range(100):
            costs.steps.observe(8, Batch(8, 0), 2.0 * STEPS.at_one(8))
    assert waits(one_pace, CHAIN, 8, 4) > 4.2, "no draft was at work since"
    assert waits(two_paces, CHAIN, 8, 4) == pytest.approx(3.0, rel=0.05)
    for _ in range(100):
        one_pace.observe_way(CHAIN, 8, 4, 6.0, beside=0.0)
    assert waits(one_pace, CHAIN, 8, 4) == pytest.approx(6.0, rel=0.05)


def test_where_the_same_cores_compute_both_what_was_seen_of_ways_is_not_believed_for_long() -> None:
    one_pace, two_paces = seen(overlaps=False), seen(overlaps=True)
    for costs in (one_pace, two_paces):
        costs.look(0.0)
        assert 0.9 < hope(costs) < 1.0
        costs.look(30.0)
    assert hope(one_pace) < 0.6 and hope(two_paces) > 0.95
    one_pace.observe_way(CHAIN, 8, 4, 3.0, beside=0.0)
    assert hope(one_pace) > 0.5


def test_a_way_that_was_given_up_took_longer() -> None:
    costs = seen(overlaps=False)
    costs.observe_way(CHAIN, 8, 4, 20.0, beside=0.0, is_late=True)
    assert waits(costs, CHAIN, 8, 4) > 3.05
