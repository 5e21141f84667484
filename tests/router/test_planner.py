"""Plans that hold still: what a target is told, and how often it is told something else."""

from __future__ import annotations

import time

import numpy as np
import pytest

from paceline.step_table import StepTable
from paceline.types import SpeculationDecision, TreeShape
from router.acceptance import AcceptanceModel
from router.adaptive import PLAN_INTERVAL_S, RoundReport, TargetPolicy
from router.cost_model import CostModel
from router.cost_tables import ProposeTable
from router.plan_rows import PlannerSettings
from router.shape_menu import ShapeMenu
from router.step_costs import Batch
from router.step_report import StepReport

CHAIN, TREE = TreeShape(3, 1, 4), TreeShape(5, 4, 16)
MENU = ShapeMenu((CHAIN, TREE))
STEPS = StepTable([(1, 4.8), (16, 5.1), (32, 5.2), (64, 5.5), (128, 6.4), (256, 8.8), (512, 12.6)])
DRAFT = ProposeTable([(CHAIN, 1, 0.75), (CHAIN, 64, 1.15), (TREE, 1, 1.18), (TREE, 64, 2.23)])
WINDOW_S = PlannerSettings().window_s


class Rig:
    """A policy, its requests' decisions, and a clock that steps move."""

    def __init__(self, num_requests: int, *, steps: StepTable = STEPS) -> None:
        self.now_s = 0.0
        self.steps = steps
        self.policy = TargetPolicy(AcceptanceModel(MENU), CostModel(steps, DRAFT), PlannerSettings(), now_s=0.0)
        self.ladders = {key: self.policy.start(key, 0.0) for key in range(num_requests)}
        self.changes: list[tuple[float, int, TreeShape | None]] = []

    def step(self, decoding: int, *, prefill_tokens: int = 0, chance: float = 0.6, rng: np.random.Generator) -> None:
        """One step of a target that obeys: a round of each request whose decision has a tree."""
        shapes = {key: self.shape(key, decoding) for key in self.ladders}
        rows = prefill_tokens + sum(1 if shape is None else shape.num_draft_tokens for shape in shapes.values())
        step_ms = self.steps.at_one(rows)
        drafted = sum(shape is not None for shape in shapes.values())
        wait_ms = 2.5 if drafted and not prefill_tokens else 0.0
        self.now_s += (step_ms + wait_ms) / 1e3
        rounds = []
        for key, shape in shapes.items():
            if shape is not None:
                fails = np.nonzero(rng.random(shape.num_steps) >= chance)[0]
                depth = min(shape.num_steps, shape.num_draft_tokens - 1)
                rounds.append(RoundReport(key, shape, min(int(fails[0]) if len(fails) else depth, depth), False))
        self.policy.take_rounds(rounds)
        report = StepReport(decoding, rows, prefill_tokens, len(shapes), drafted, 200 * len(shapes), step_ms, wait_ms)
        self.policy.take_step(report, self.now_s)
        if self.policy.is_due(self.now_s):
            for key, ladder in self.policy.plan(self.now_s).items():
                assert isinstance(key, int)
                self.ladders[key] = ladder
                self.changes.append((self.now_s, key, self.shape(key, decoding)))
            self.policy.revise_following(self.now_s)

    def shape(self, key: int, decoding: int) -> TreeShape | None:
        return SpeculationDecision("d:1", self.ladders[key]).shape_for(decoding)


def test_the_first_ladder_speculates_at_low_load_and_not_at_high() -> None:
    rig = Rig(1)
    assert rig.shape(0, 1) == TREE
    assert rig.shape(0, 512) is None


def test_a_burst_is_followed_on_the_ladder_without_a_word() -> None:
    rig = Rig(1)
    nodes = [1 if (shape := rig.shape(0, batch)) is None else shape.num_draft_tokens for batch in (1, 8, 32, 128, 500)]
    assert nodes == sorted(nodes, reverse=True)
    assert nodes[0] == 16 and nodes[-1] == 1


def test_two_requests_leave_the_plan_of_a_lone_one_for_one_that_gives_a_percent_more() -> None:
    rows_cost_a_little = StepTable([(1, 4.8), (16, 5.0), (20, 5.6), (32, 6.1), (512, 20.0)])
    rig = Rig(2, steps=rows_cost_a_little)
    rng = np.random.default_rng(6)
    assert rig.shape(0, 2) == TREE
    while rig.now_s < 1.5 * WINDOW_S:
        rig.step(2, rng=rng)
    shape = rig.shape(0, 2)
    assert shape is not None and shape.num_draft_tokens <= 8


def test_two_requests_leave_the_plan_of_a_lone_one_and_keep_theirs_while_one_is_replaced() -> None:
    more_rows_cost = StepTable([(1, 4.8), (16, 5.0), (20, 9.0), (512, 20.0)])
    rig = Rig(2, steps=more_rows_cost)
    rng = np.random.default_rng(5)
    assert rig.shape(0, 1) == rig.shape(0, 2) == TREE
    for step in range(3000):
        rig.step(1 if step % 15 < 2 else 2, rng=rng)
        shape = rig.shape(0, 2)
        if rig.now_s > 2 * WINDOW_S:
            assert shape is not None and shape.num_draft_tokens <= 8, f"at {rig.now_s:.2f} s"
    assert rig.now_s > 20 * WINDOW_S


def test_rungs_ascend_and_the_last_has_no_bound_or_is_off() -> None:
    rig = Rig(4)
    rng = np.random.default_rng(1)
    for _ in range(400):
        rig.step(4, rng=rng)
        for ladder in rig.ladders.values():
            bounds = [rung.max_running_requests for rung in ladder]
            assert all(bounds[:-1]) and bounds[:-1] == sorted(set(bounds[:-1]))


def test_eight_decodes_and_long_prompts_that_come_and_go_do_not_make_it_flap() -> None:
    rig = Rig(8)
    rng = np.random.default_rng(2)
    flips = 0
    before = [rig.shape(key, 8) for key in range(8)]
    for step in range(3000):
        arriving = (step // 40) % 2  # 40 steps with prompts, 40 without
        decoding = 8 + (step // 20) % 3  # and what they leave behind
        rig.step(decoding, prefill_tokens=512 * arriving, rng=rng)
        after = [rig.shape(key, decoding) for key in range(8)]
        flips += sum((a is None) != (b is None) for a, b in zip(before, after, strict=True))
        before = after
    assert flips <= 8
    _assert_one_change_a_window(rig)


def test_a_request_changes_at_most_once_a_window_whatever_happens() -> None:
    rig = Rig(20)
    rng = np.random.default_rng(3)
    for step in range(3000):
        decoding = int(rng.choice([1, 4, 20, 90, 300]))
        chance = 0.9 if (step // 50) % 2 else 0.1
        rig.step(decoding, prefill_tokens=int(rng.choice([0, 0, 512])), chance=chance, rng=rng)
    assert rig.changes
    _assert_one_change_a_window(rig)


def test_a_draft_that_is_never_right_is_given_up_and_asked_again_now_and_then() -> None:
    rig = Rig(8)
    rng = np.random.default_rng(4)
    for _ in range(2000):
        rig.step(8, chance=0.02, rng=rng)
    off_since_s = rig.now_s
    drafted = total = 0
    while rig.now_s < off_since_s + 20:
        rig.step(8, chance=0.02, rng=rng)
        shapes = [rig.shape(key, 8) for key in range(8)]
        drafted += sum(shape is not None for shape in shapes)
        total += 8
    assert 0 < drafted / total < 0.05


def test_acceptance_that_recovers_brings_speculation_back() -> None:
    rig = Rig(8)
    rng = np.random.default_rng(5)
    for _ in range(2000):
        rig.step(8, chance=0.02, rng=rng)
    recovered_s = rig.now_s
    while not all(rig.shape(key, 8) is not None for key in range(8)):
        rig.step(8, chance=0.75, rng=rng)
        assert rig.now_s < recovered_s + 60
    assert rig.now_s > recovered_s


def test_trees_that_always_come_after_their_deadline_turn_speculation_off() -> None:
    rig = Rig(8)
    waited_ms = spent_ms = 0.0
    while rig.now_s < 60:
        drafted = [key for key in rig.ladders if rig.shape(key, 8) is not None]
        wait_ms = 6.0 if drafted else 0.0  # a deadline; the trees take longer
        rig.now_s += (STEPS.at_one(8) + wait_ms) / 1e3
        rig.policy.take_rounds([RoundReport(key, TREE, 0, True) for key in drafted])
        rig.policy.take_step(StepReport(8, 8, 0, 8, 0, 1600, STEPS.at_one(8), wait_ms), rig.now_s)
        if rig.policy.is_due(rig.now_s):
            rig.ladders.update(rig.policy.plan(rig.now_s))
        if rig.now_s > 2:
            waited_ms, spent_ms = waited_ms + wait_ms, spent_ms + STEPS.at_one(8) + wait_ms
    assert 0 < waited_ms < 0.04 * spent_ms, "it is tried now and then, and costs next to nothing"


def test_a_prompts_last_part_says_nothing_of_steps_beside_a_draft() -> None:
    costs = CostModel(STEPS, DRAFT, shares_host=True)
    policy = TargetPolicy(AcceptanceModel(MENU), costs, PlannerSettings(), now_s=0.0)
    policy.start(0, 0.0)
    policy.take_rounds([RoundReport(0, TREE, 2, False)])
    policy.take_step(StepReport(8, 128, 0, 8, 8, 1600, STEPS.at_one(128), 3.0), 1.0)
    beside = Batch(4.0, 800.0, 4.0, beside_ms=2.0)
    before = float(costs.step_ms(np.array([64.0]), beside)[0])
    for number in range(50):  # eight whose prompts end in the step: decoding from then on, and verified nothing in it
        policy.take_step(StepReport(8, 400, 400, 0, 0, 0, 3 * STEPS.at_one(400), 0.0), 1.02 + number / 1e3)
    assert float(costs.step_ms(np.array([64.0]), beside)[0]) == before


def test_it_begins_with_the_default_where_the_calibration_promises_little_more() -> None:
    small = TreeShape(5, 4, 8)
    settings = PlannerSettings(default=small)
    policy = TargetPolicy(AcceptanceModel(MENU), CostModel(STEPS, DRAFT), settings, now_s=0.0)
    decision = SpeculationDecision("d:1", policy.start(0, 0.0))
    assert decision.shape_for(1) == small
    assert decision.shape_for(512) is None


def test_a_request_that_ended_is_told_nothing() -> None:
    rig = Rig(2)
    rng = np.random.default_rng(6)
    rig.policy.end(1)
    del rig.ladders[1]
    for _ in range(300):
        rig.step(1, rng=rng)
    assert {key for _, key, _ in rig.changes} <= {0}
    rig.policy.end(1)


def test_a_plan_is_cheap_at_a_full_batch() -> None:
    rig = Rig(256)
    rng = np.random.default_rng(7)
    for _ in range(20):
        rig.step(256, rng=rng)
    best_s = min(_cpu_s(rig) for _ in range(5))
    assert best_s < 0.1 * PLAN_INTERVAL_S


def _cpu_s(rig: Rig) -> float:
    rig.now_s += 2 * WINDOW_S
    started = time.thread_time()
    rig.policy.plan(rig.now_s)
    return time.thread_time() - started


def _assert_one_change_a_window(rig: Rig) -> None:
    last: dict[int, float] = {}
    for at_s, key, _ in rig.changes:
        assert at_s - last.get(key, -WINDOW_S) >= WINDOW_S - 1e-9
        last[key] = at_s


@pytest.mark.parametrize("decoding", [1, 8, 64, 256])
def test_within_a_quarter_around_its_batch_a_plan_has_one_rung(decoding: int) -> None:
    rig = Rig(2)
    rng = np.random.default_rng(8)
    for _ in range(1500):
        rig.step(decoding, rng=rng)
    around = range(int(np.ceil(0.75 * decoding)), int(1.25 * decoding) + 1)
    assert len({rig.shape(0, batch) for batch in around}) == 1
