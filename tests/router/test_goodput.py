"""The choice of trees by goodput: against arithmetic by hand, and against trying everything."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from paceline.step_table import StepTable
from paceline.types import TreeShape
from router.acceptance import AcceptanceModel
from router.cost_model import CostModel
from router.cost_tables import ProposeTable
from router.crowd import Crowd, Prompts
from router.goodput import Goodput
from router.shape_menu import OFF, ShapeMenu
from router.step_costs import TREE_MS, TREES_MS, Batch

CHAIN, TREE = TreeShape(3, 1, 4), TreeShape(5, 4, 16)
MENU = ShapeMenu((CHAIN, TREE))
H200 = StepTable([(1, 4.8), (16, 5.1), (32, 5.2), (64, 5.5), (128, 6.4), (256, 8.8), (512, 12.6)])
DRAFT = ProposeTable([(CHAIN, 1, 0.75), (CHAIN, 64, 1.15), (TREE, 1, 1.18), (TREE, 64, 2.23)])
COSTS = CostModel(H200, DRAFT)
GOODPUT = Goodput(MENU, COSTS)
NO_PROMPTS = Prompts()


def crowd(*skills: float) -> Crowd:
    share = np.full(len(skills), 1 / len(skills))
    return Crowd(share, AcceptanceModel(MENU).lengths(np.array(skills)), context_tokens=0.0, num_drafts=1)


def rate(who: Crowd, batch: float, *shapes: TreeShape | None, prompts: Prompts = NO_PROMPTS) -> float:
    index = np.array([OFF if shape is None else MENU.index[shape] for shape in shapes])
    return GOODPUT.of(who, batch, prompts, index).goodput


def chosen(who: Crowd, batch: float, prompts: Prompts = NO_PROMPTS) -> list[TreeShape | None]:
    choice = GOODPUT.best(who, np.array([batch]), prompts)
    return [MENU.shape(index) for index in choice.shapes[0].tolist()]


def test_plain_decoding_is_rows_over_step_time() -> None:
    assert rate(crowd(0.0), 64, None) == pytest.approx(64 / 5.5e-3)


def test_a_round_is_accepted_tokens_over_verify_wait_and_messages() -> None:
    length = float(AcceptanceModel(MENU).lengths(np.zeros(1))[0, MENU.index[CHAIN]])
    verify_ms = 5.5 + 16 * TREE_MS + TREES_MS
    expected = 16 * length / (verify_ms + float(COSTS.wait_ms(CHAIN, np.array([16.0]), 4.0)[0])) * 1e3
    of_chain = np.array([MENU.index[CHAIN]])
    assert GOODPUT.promised(crowd(0.0), 16, NO_PROMPTS, of_chain).goodput == pytest.approx(expected)


def test_a_lone_request_is_promised_what_a_batch_of_one_is() -> None:
    alone = GOODPUT.alone(crowd(0.0))[0]
    for shape in MENU.index.values():
        of_one = GOODPUT.promised(crowd(0.0), 1, NO_PROMPTS, np.array([shape])).together
        assert alone[shape] == pytest.approx(of_one)


def test_small_batches_get_large_trees_and_large_ones_none() -> None:
    who = crowd(0.0)
    assert chosen(who, 1)[0] == TREE
    assert chosen(who, 256) == [None]
    picked = [shape for batch in (1, 4, 16, 64, 256) for shape in chosen(who, batch)]
    nodes = [1 if shape is None else shape.num_draft_tokens for shape in picked]
    assert nodes == sorted(nodes, reverse=True)


@pytest.mark.parametrize("batch", [1, 8, 32, 64, 128, 512])
def test_no_uniform_choice_is_better(batch: float) -> None:
    who = crowd(-0.8, 0.0, 0.8)
    best = float(GOODPUT.best(who, np.array([batch]), NO_PROMPTS).goodput[0])
    for shape in (None, *MENU.shapes):
        assert best >= rate(who, batch, shape, shape, shape) * (1 - 1e-9)


def test_the_price_of_a_row_finds_what_trying_all_mixes_finds() -> None:
    who = crowd(-0.8, 0.0, 0.8)
    for batch in (8.0, 40.0, 90.0):
        best = float(GOODPUT.best(who, np.array([batch]), NO_PROMPTS).goodput[0])
        mixes = [
            rate(who, batch, *mix)
            for members in MENU.of_growth
            for mix in itertools.product((None, *(MENU.shapes[i] for i in members.tolist())), repeat=3)
        ]
        assert best >= 0.995 * max(mixes)


def test_in_one_batch_a_request_that_accepts_more_gets_more_nodes() -> None:
    bad, average, good = chosen(crowd(-1.5, 0.0, 1.0), 24)
    nodes = [1 if shape is None else shape.num_draft_tokens for shape in (bad, average, good)]
    assert nodes[0] < nodes[1] <= nodes[2]


def test_plain_requests_that_step_between_the_trees_are_worth_less_than_joined_ones() -> None:
    who = crowd(-1.5, 0.5)
    mixed = GOODPUT.of(who, 16, NO_PROMPTS, np.array([OFF, MENU.index[CHAIN]]))
    assert mixed.joined


def test_with_prompts_in_most_steps_trees_join_them() -> None:
    prompts = Prompts(steps_per_s=120.0, tokens_per_step=120.0)
    assert GOODPUT.of(crowd(0.0), 16, prompts, np.array([MENU.index[CHAIN]])).joined
    assert rate(crowd(0.0), 16, CHAIN, prompts=prompts) < rate(crowd(0.0), 16, CHAIN)


def test_longer_contexts_favour_larger_trees() -> None:
    slow = CostModel(H200, DRAFT)
    for _ in range(300):
        slow.steps.observe(64, Batch(64, 400_000), 25.0)
    short, long = (
        Goodput(MENU, slow).best(
            Crowd(np.ones(1), crowd(0.0).lengths, context_tokens=tokens, num_drafts=1), np.array([96.0]), NO_PROMPTS
        )
        for tokens in (10.0, 6000.0)
    )
    sizes = [1 if index == OFF else int(MENU.num_nodes[index]) for index in (short.shapes[0, 0], long.shapes[0, 0])]
    assert sizes[1] > sizes[0]


def test_in_halves_a_round_is_two_steps_and_what_the_trees_come_late_by() -> None:
    length = float(AcceptanceModel(MENU).lengths(np.zeros(1))[0, MENU.index[CHAIN]])
    for batch in (8, 96):
        costs = CostModel(H200, DRAFT, overlaps=True)
        half = Batch(batch / 2, 0.0, batch / 2, float(costs.draft_ms(CHAIN, np.array([batch / 2]))[0]))
        step_ms = float(costs.step_ms(np.array([4.0 * batch / 2]), half)[0])
        wait_ms = float(costs.wait_ms(CHAIN, np.array([batch / 2]), 4.0, beside=1.0)[0])
        least_ms = max(2 * step_ms, step_ms + wait_ms + TREE_MS * batch / 2)
        slowest, fastest = (batch * length / ms * 1e3 for ms in (least_ms + wait_ms * costs.wait_spread, least_ms))
        of_chain = np.array([MENU.index[CHAIN]])
        at_once, choice = (
            Goodput(MENU, its).promised(crowd(0.0), batch, NO_PROMPTS, of_chain).goodput for its in (COSTS, costs)
        )
        assert max(slowest, at_once) <= choice <= max(fastest, at_once)
        assert (slowest > at_once) == (batch == 96), "small rounds would read the weights twice for nothing"


def test_in_halves_trees_that_mostly_come_in_time_cost_more_the_more_their_ways_spread() -> None:
    of_chain = np.array([MENU.index[CHAIN]])
    steady, spread = CostModel(H200, DRAFT, overlaps=True), CostModel(H200, DRAFT, overlaps=True)
    for _ in range(100):
        for costs, times in ((steady, (6.0, 6.0)), (spread, (3.0, 9.0))):
            for ms in times:
                costs.trees.observe(CHAIN, 48, 4, ms, beside=1.0)
    rates = [Goodput(MENU, costs).of(crowd(0.0), 96, NO_PROMPTS, of_chain).goodput for costs in (steady, spread)]
    assert spread.wait_spread > 4 * steady.wait_spread
    assert 0.8 < rates[1] / rates[0] < 0.97


def test_where_rounds_overlap_a_slow_draft_is_hidden() -> None:
    slow = ProposeTable([(CHAIN, 1, 3.0), (CHAIN, 64, 9.0), (TREE, 1, 4.7), (TREE, 64, 12.0)])
    alone, overlapped = (
        float(
            Goodput(MENU, CostModel(H200, slow, overlaps=overlaps))
            .best(crowd(1.2), np.array([32.0]), NO_PROMPTS)
            .goodput[0]
        )
        for overlaps in (False, True)
    )
    assert overlapped > 1.05 * alone
