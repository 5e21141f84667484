"""When a plan takes over what promises more."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.step_table import Floats, StepTable
from paceline.types import TreeShape
from router.acceptance import AcceptanceModel
from router.cost_model import CostModel
from router.cost_tables import ProposeTable
from router.crowd import Crowd, Prompts
from router.goodput import Goodput
from router.plan_rows import SKILLS, PlannerSettings, PlanRows, row_at
from router.shape_menu import ShapeMenu
from router.track_record import Stretch

NARROW, WIDE = TreeShape(5, 2, 16), TreeShape(5, 4, 16)
MENU = ShapeMenu((NARROW, WIDE))
STEPS = StepTable([(1, 4.8), (64, 5.5), (128, 6.4), (512, 12.6)])
DRAFT = ProposeTable([(NARROW, 1, 3.0), (NARROW, 64, 4.0), (WIDE, 1, 3.0), (WIDE, 64, 4.0)])
BATCH = 8.0


class Swinging(CostModel):
    """Trees of one growth take another time than those of the other."""

    swing = 1.0

    def wait_ms(self, growth: TreeShape, sessions: Floats, nodes: Floats | float, *, beside: float = 0.0) -> Floats:
        ms = super().wait_ms(growth, sessions, nodes, beside=beside)
        return ms * self.swing if growth == WIDE else ms


def changes(swings: list[float]) -> list[int]:
    """The looks at which the growth of 8 requests changes."""
    costs = Swinging(STEPS, DRAFT)
    model = AcceptanceModel(MENU)
    plan = PlanRows(MENU, costs, PlannerSettings())
    crowd = Crowd(np.eye(len(SKILLS))[len(SKILLS) // 2], model.lengths(SKILLS), 200.0, 1)
    plan.begin(crowd, Prompts())
    row, looks = row_at(BATCH), []
    for look, swing in enumerate(swings):
        costs.swing = swing
        before = MENU.growth_index[plan.shapes[row].max()]
        plan.revise(crowd, Prompts(), BATCH)
        if MENU.growth_index[plan.shapes[row].max()] != before:
            looks.append(look)
    return looks


def test_what_is_better_now_and_worse_then_changes_nothing() -> None:
    assert changes([1.0] * 4 + [1.08, 0.92] * 20) in ([], [0])


def test_a_small_gain_is_taken_once_it_lasts_and_a_large_one_at_once() -> None:
    small, large = changes([1.0] * 4 + [1.1] * 40), changes([1.0] * 4 + [3.0] * 40)
    assert len(small) == len(large) == 1
    assert large[0] == 4 < small[0] < 40


@pytest.mark.parametrize(("gave", "stays"), [(1.0, False), (1.2, True)], ids=["no more", "more"])
def test_a_trial_is_over_after_two_stretches_unless_it_gives_more(gave: float, stays: bool) -> None:
    costs = Swinging(STEPS, DRAFT)
    plan, goodput = PlanRows(MENU, costs, PlannerSettings()), Goodput(MENU, costs)
    crowd = Crowd(np.eye(len(SKILLS))[len(SKILLS) // 2], AcceptanceModel(MENU).lengths(SKILLS), 200.0, 1)
    row, wide = row_at(BATCH), MENU.growths.index(WIDE)
    known_ms = float(costs.wait_ms(NARROW, np.array([BATCH]), NARROW.num_draft_tokens)[0])
    for _ in range(100):
        costs.trees.observe(NARROW, int(BATCH), NARROW.num_draft_tokens, known_ms, beside=0.0)
    narrow = np.full(len(SKILLS), MENU.index[NARROW])
    while MENU.growth_index[goodput.best(crowd, np.array([BATCH]), Prompts()).shapes.max()] == wide:
        costs.swing *= 1.01
    costs.swing *= 1.03  # a little less is promised of it
    plan.shapes[:] = narrow
    assert plan.hope(crowd, row, Prompts(), [])
    growths = []
    for _ in range(3):
        plan.revise(crowd, Prompts(), BATCH)
        growths.append(MENU.growth_index[plan.shapes[row].max()])
        costs.record.note(Stretch(BATCH, wide, True, 16.0, gave * 100.0, lambda: 100.0))
    assert growths == [wide, wide, wide if stays else MENU.growths.index(NARROW)]
