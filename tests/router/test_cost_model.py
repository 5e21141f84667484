"""What steps and waits are expected to take, from warm-up and from what was seen."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.step_table import StepTable
from paceline.types import TreeShape
from router.cost_fit import DriftingFit, Weight
from router.cost_model import CostModel
from router.cost_tables import ProposeTable, rows_of_session
from router.step_costs import Batch
from router.tree_costs import NODE_MS, RPC_MS, SESSION_MS

CHAIN, TREE = TreeShape(3, 1, 4), TreeShape(5, 4, 16)
STEPS = StepTable([(1, 5.0), (64, 6.0), (256, 9.0)])
PROPOSALS = ProposeTable([(CHAIN, 1, 0.8), (CHAIN, 64, 1.2), (TREE, 1, 1.2), (TREE, 64, 2.2)])
ALONE = Batch(1, 0)


def expected(costs: CostModel, rows: float, batch: Batch = ALONE) -> float:
    return float(costs.step_ms(np.array([rows]), batch)[0])


def waits(
    costs: CostModel, growth: TreeShape, sessions: float, nodes: float | None = None, *, beside: float = 0.0
) -> float:
    """nodes: None: as many as the growth has."""
    nodes = growth.num_draft_tokens if nodes is None else nodes
    return float(costs.wait_ms(growth, np.array([sessions]), nodes, beside=beside)[0])


def test_a_table_is_straight_between_its_points_and_past_the_last() -> None:
    assert STEPS.at(np.array([1.0, 32.5, 64.0, 160.0, 320.0])) == pytest.approx([5.0, 5.5, 6.0, 7.5, 10.0])
    for rows in (0.5, 1, 17, 64, 100, 256, 700):
        assert STEPS.at_one(rows) == pytest.approx(float(STEPS.at(np.array([float(rows)]))[0]))


def test_a_noisy_warm_up_never_makes_more_rows_cheaper() -> None:
    table = StepTable([(8, 4.0), (1, 5.0), (32, 6.0)])
    assert table.ms.tolist() == [4.0, 4.0, 6.0]


def test_before_anything_was_seen_the_warm_up_holds() -> None:
    costs = CostModel(STEPS, PROPOSALS)
    assert expected(costs, 64) == pytest.approx(6.0)
    assert waits(costs, TREE, 64) == pytest.approx(2.2 + RPC_MS + 64 * (SESSION_MS + 16 * NODE_MS))


def test_steps_twice_as_long_as_in_the_warm_up_are_expected_at_their_size() -> None:
    costs = CostModel(STEPS, PROPOSALS)
    for _ in range(200):
        costs.steps.observe(64, ALONE, 12.0)
    assert expected(costs, 64) == pytest.approx(12.0, rel=0.05)


def test_what_is_seen_at_one_size_leaves_the_price_of_a_row_almost_as_calibrated() -> None:
    costs = CostModel(STEPS, PROPOSALS)
    batch = Batch(64, 50_000)
    for _ in range(200):
        costs.steps.observe(64, batch, 9.0)
    price = expected(costs, 256, batch) - expected(costs, 64, batch)
    assert price == pytest.approx(3.0, rel=0.25)


def test_a_slower_machine_is_told_from_longer_contexts_once_both_were_seen() -> None:
    costs = CostModel(STEPS, PROPOSALS)
    rng = np.random.default_rng(0)
    for _ in range(1000):
        rows, context = int(rng.integers(1, 256)), int(rng.integers(0, 200_000))
        costs.steps.observe(rows, Batch(8, context), 1.3 * STEPS.at_one(rows) + 2.0 * context / 1e5)
    assert expected(costs, 100, Batch(8, 0)) == pytest.approx(1.3 * STEPS.at_one(100), rel=0.06)
    assert expected(costs, 100, Batch(8, 200_000)) == pytest.approx(1.3 * STEPS.at_one(100) + 4.0, rel=0.06)


def test_one_pause_of_the_machine_teaches_little() -> None:
    costs = CostModel(STEPS, PROPOSALS)
    for _ in range(50):
        costs.steps.observe(64, ALONE, 6.0)
    costs.steps.observe(64, ALONE, 5000.0)
    assert expected(costs, 64) < 7.5


def test_waits_follow_what_is_seen_for_every_growth() -> None:
    costs = CostModel(STEPS, PROPOSALS)
    for _ in range(200):
        costs.trees.observe(CHAIN, 64, 4, 3.6, beside=0.0)
    assert waits(costs, CHAIN, 64) == pytest.approx(3.6, rel=0.05)
    assert waits(costs, TREE, 64) > 4.0


def test_what_is_not_seen_any_more_is_forgotten() -> None:
    fit = DriftingFit([Weight(1.0, 0.1, 0.0, 50.0)])
    for _ in range(200):
        fit.observe(np.ones(1), 3.0, noise=0.1)
    before = fit.weights[0]
    for _ in range(500):
        fit.observe(np.zeros(1), 0.0, noise=0.1)
    assert before > 2.8
    assert fit.weights[0] == pytest.approx(1.0, abs=0.01)


def test_a_table_that_is_wrong_at_one_size_is_mended_there_by_a_few_steps() -> None:
    costs = CostModel(StepTable([(1, 36.0), (5, 67.0), (8, 70.0)]), PROPOSALS)
    for _ in range(50):
        costs.steps.observe(5, ALONE, 30.0)
    for _ in range(6):
        costs.steps.observe(1, ALONE, 25.0)
    assert expected(costs, 1) == pytest.approx(25.0, rel=0.08)
    assert expected(costs, 5) == pytest.approx(30.0, rel=0.08)


def test_what_plain_steps_take_is_known_through_a_long_time_of_trees() -> None:
    costs = CostModel(StepTable([(1, 36.0), (5, 67.0), (8, 70.0)]), PROPOSALS)
    for rows, ms, count in ((5, 30.0, 100), (1, 25.0, 10), (5, 30.0, 3000)):
        for _ in range(count):
            costs.steps.observe(rows, ALONE, ms)
    assert expected(costs, 1) == pytest.approx(25.0, rel=0.2), "the table alone, scaled to what trees take, says 16"


def test_a_late_tree_is_taken_to_have_needed_more_than_its_deadline() -> None:
    costs = CostModel(STEPS, PROPOSALS)
    for _ in range(10):
        costs.trees.observe_late(TREE, 64, 16, 5.0, beside=0.0)
    assert waits(costs, TREE, 64) > 5.0
    before = waits(costs, TREE, 64)
    costs.trees.observe_late(TREE, 64, 16, 1.0, beside=0.0)
    assert waits(costs, TREE, 64) == before


def test_hope_is_largest_where_nothing_was_seen() -> None:
    costs = CostModel(STEPS, PROPOSALS)
    for _ in range(100):
        costs.steps.observe(64, ALONE, 6.0)
    hoped = [float(costs.hopeful.step_ms(np.array([rows]), ALONE)[0]) / expected(costs, rows) for rows in (64, 256)]
    assert 0.97 < hoped[0] < 1.0
    assert hoped[1] == pytest.approx(0.9)


def test_a_growth_takes_no_longer_than_what_was_measured_of_a_larger_one() -> None:
    table = ProposeTable([(CHAIN, 1, 9.0), (TREE, 1, 1.2), (TREE, 64, 2.2)])
    assert table.of(CHAIN).at_one(1) == pytest.approx(1.2)


def test_times_with_a_long_tail_do_not_drive_the_scale_and_a_size_apart() -> None:
    costs = CostModel(STEPS, PROPOSALS)
    rng = np.random.default_rng(1)
    for _ in range(3000):
        costs.trees.observe(CHAIN, 1, 4, float(rng.choice([1.0, 1.2, 4.0])), beside=0.0)
    assert waits(costs, CHAIN, 1) == pytest.approx(2.07, rel=0.2)
    assert 0.7 < waits(costs, TREE, 1) / waits(costs, CHAIN, 1) < 1.6


def test_a_bad_first_wait_makes_no_other_growth_look_dearer_for_long() -> None:
    costs = CostModel(STEPS, PROPOSALS)
    costs.trees.observe(TREE, 8, 16, 12.0, beside=0.0)
    for _ in range(30):
        costs.trees.observe(TREE, 8, 16, 5.0, beside=0.0)
    assert waits(costs, TREE, 8) == pytest.approx(5.0, rel=0.1)
    assert waits(costs, CHAIN, 8) < waits(costs, TREE, 8)


def test_what_a_step_beside_it_costs_a_draft_is_not_taken_for_the_drafts_own_time() -> None:
    costs = CostModel(STEPS, PROPOSALS, shares_host=True)
    for _ in range(40):
        costs.trees.observe(TREE, 8, 16, 4.0, beside=0.0)
        costs.trees.observe(TREE, 8, 16, 6.5, beside=1.0)
    assert waits(costs, TREE, 8) == pytest.approx(4.0, rel=0.05)
    assert waits(costs, TREE, 8, beside=1.0) == pytest.approx(6.5, rel=0.05)
    by_chain = waits(costs, CHAIN, 8, beside=1.0) - waits(costs, CHAIN, 8)
    assert by_chain < 2.5, "a growth that takes the draft longer is held up for longer"


def test_one_step_into_which_other_work_fell_moves_little_of_what_is_known() -> None:
    costs = CostModel(StepTable([(1, 70.0), (2, 76.0)]), PROPOSALS)
    for _ in range(12):
        costs.steps.observe(4, ALONE, 20.0)
    costs.steps.observe(4, ALONE, 150.0)
    assert expected(costs, 4) < 27.0


def test_a_small_step_takes_no_longer_than_a_large_one_that_is_known() -> None:
    costs = CostModel(StepTable([(1, 18.0), (16, 115.0), (32, 128.0)]), PROPOSALS)
    for _ in range(20):
        costs.steps.observe(1, ALONE, 18.0)
    for _ in range(20):
        costs.steps.observe(32, ALONE, 65.0)
    assert expected(costs, 16) <= 1.05 * expected(costs, 32)


def test_a_growth_measured_at_one_size_grows_with_its_sessions_as_the_best_measured_one() -> None:
    table = ProposeTable([(CHAIN, 1, 2.0), (CHAIN, 4, 4.0), (CHAIN, 16, 12.0), (TREE, 1, 10.0)])
    assert table.of(TREE).at(np.array([1.0, 4.0, 16.0])) == pytest.approx([10.0, 20.0, 60.0])


def test_sizes_past_a_short_warm_up_are_learnt_each_for_itself() -> None:
    costs = CostModel(StepTable([(1, 20.0), (2, 40.0)]), PROPOSALS)
    for _ in range(100):
        for rows, ms in ((1, 20.0), (4, 27.0), (8, 31.0), (16, 43.0)):
            costs.steps.observe(rows, ALONE, ms)
    assert expected(costs, 4) == pytest.approx(27.0, rel=0.1)
    assert expected(costs, 16) == pytest.approx(43.0, rel=0.1)


def test_a_size_seen_seldom_and_at_a_bad_time_takes_no_longer_than_a_larger_one() -> None:
    costs = CostModel(StepTable([(1, 20.0), (8, 30.0)]), PROPOSALS)
    for _ in range(8):
        costs.steps.observe(1, ALONE, 60.0)
    for _ in range(100):
        costs.steps.observe(8, ALONE, 30.0)
    assert expected(costs, 1) <= 1.15 * expected(costs, 8)


def test_on_one_host_a_prompt_costs_what_its_rows_take_the_draft() -> None:
    proposals = ProposeTable([(CHAIN, 4, 5.0), (CHAIN, 16, 17.0)])
    assert CostModel(STEPS, proposals, shares_host=True).follow_ms == pytest.approx(0.25)
    assert CostModel(STEPS, proposals).follow_ms == 0.0


def test_what_each_tree_costs_the_hosts_is_learnt_in_a_few_rounds_and_holds_at_other_sizes() -> None:
    costs = CostModel(STEPS, PROPOSALS)
    for _ in range(10):
        for sessions in (8, 32):
            costs.trees.observe(
                TREE, sessions, 16, PROPOSALS.of(TREE).at_one(sessions) + 0.8 + 0.15 * sessions, beside=0.0
            )
            step_ms = STEPS.at_one(4 * sessions) + 0.12 * sessions
            costs.steps.observe(4 * sessions, Batch(sessions, 100 * sessions, sessions), step_ms)
    assert waits(costs, TREE, 128) == pytest.approx(PROPOSALS.of(TREE).at_one(128) + 0.8 + 0.15 * 128, rel=0.12)
    trees, plain = Batch(64, 6400, 64), Batch(64, 6400)
    assert expected(costs, 256, trees) == pytest.approx(9.0 + 0.12 * 64, rel=0.12)
    assert expected(costs, 64, plain) == pytest.approx(6.0, rel=0.15), "plain steps pay nothing for trees"


def test_what_a_draft_takes_from_steps_beside_it_is_not_taken_for_the_steps_own() -> None:
    costs = CostModel(STEPS, PROPOSALS, shares_host=True)
    for _ in range(60):
        costs.steps.observe(64, Batch(16, 1600, 16, beside_ms=3.0), 9.0)
    assert expected(costs, 64, Batch(64, 6400)) == pytest.approx(6.0, rel=0.15)
    assert expected(costs, 64, Batch(16, 1600, 16, beside_ms=3.0)) == pytest.approx(9.0, rel=0.05)


def test_what_a_session_costs_the_drafts_host_is_not_taken_for_the_price_of_its_rows() -> None:
    hosts_part = 0.04  # ms a session, however few its rows
    times = [
        (growth, sessions, 1.0 + sessions * (hosts_part + 0.001 * rows_of_session(growth)))
        for growth in (CHAIN, TREE)
        for sessions in (1, 256)
    ]
    assert ProposeTable(times).row_ms == pytest.approx(0.001)
