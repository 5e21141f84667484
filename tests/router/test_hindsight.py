"""Which stretches of steps are held against what was promised, and what they say."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.step_table import StepTable
from paceline.types import TreeShape
from router.acceptance import AcceptanceModel
from router.cost_model import CostModel
from router.cost_tables import ProposeTable
from router.crowd import Crowd, Prompts
from router.goodput import Goodput
from router.hindsight import Hindsight
from router.shape_menu import OFF, ShapeMenu
from router.step_report import StepReport

CHAIN, TREE = TreeShape(3, 1, 4), TreeShape(5, 4, 16)
MENU = ShapeMenu((CHAIN, TREE))
MODEL = AcceptanceModel(MENU)
STEPS = StepTable([(1, 4.8), (16, 5.1), (64, 5.5), (128, 6.4), (512, 12.6)])
DRAFT = ProposeTable([(CHAIN, 1, 0.75), (CHAIN, 64, 1.15), (TREE, 1, 1.18), (TREE, 64, 2.23)])


class Run:
    """Steps of 8 requests, and what the record says of them afterwards."""

    def __init__(self) -> None:
        self.costs = CostModel(STEPS, DRAFT)
        self.hindsight = Hindsight(MODEL, self.costs)
        self.hindsight.conclude(8, 1, joined=True)

    def steps(
        self, shape: TreeShape | None, cycle_ms: float, *, count: int = 50, drafted: int = 8, late: int = 0
    ) -> None:
        for _ in range(count):
            on = 0 if shape is None else drafted
            rows = 8 if shape is None else on * shape.num_draft_tokens + 8 - on
            self.hindsight.take_step(StepReport(8, rows, 0, 8, on, 1600, cycle_ms - 1.0, 1.0))
            if shape is not None:
                self.hindsight.take_rounds([MENU.index[shape]] * (on + late))

    def change(self, shape: TreeShape | None, *, planned: int = 8) -> float:
        """Of the factor on 8 requests with that shape, by the stretch that ends now."""
        fresh = CostModel(STEPS, DRAFT).record
        self.hindsight.conclude(planned, 1, joined=True)
        growth = OFF if shape is None else MENU.growths.index(shape)
        nodes = 1 if shape is None else shape.num_draft_tokens
        option = np.array([8.0]), np.array([growth]), np.array([float(nodes)])
        now, before = (record.factors(*option, joined=shape is not None) for record in (self.costs.record, fresh))
        return float(now[0, 0] / before[0, 0])

    def promised_ms(self, shape: TreeShape | None) -> float:
        """Of a round of 8 requests."""
        index = OFF if shape is None else MENU.index[shape]
        lengths = MODEL.lengths(np.zeros(1))
        length = 1.0 if shape is None else float(lengths[0, index])
        who = Crowd(np.ones(1), lengths, 200.0, 1)
        rate = Goodput(MENU, self.costs).promised(who, 8.0, Prompts(), np.array([index]))
        return 8e3 * length / rate.together


@pytest.mark.parametrize("shape", [None, CHAIN, TREE])
def test_rounds_that_take_as_long_as_promised_change_nothing_and_longer_ones_do(shape: TreeShape | None) -> None:
    as_promised, slower = Run(), Run()
    as_promised.steps(shape, as_promised.promised_ms(shape))
    slower.steps(shape, 1.2 * slower.promised_ms(shape))
    free = 1.0 if shape is None else as_promised.change(shape)
    assert slower.change(shape) < 0.95 * free
    assert free == pytest.approx(1.0, abs=0.06)


@pytest.mark.parametrize("what", ["short", "mixed", "late", "two growths", "others' requests", "another way to step"])
def test_stretches_that_are_not_of_one_choice_say_nothing(what: str) -> None:
    run = Run()
    planned = 8
    match what:
        case "short":
            run.steps(TREE, 20.0, count=5)
        case "mixed":
            run.steps(TREE, 20.0, drafted=3)
        case "late":
            run.steps(TREE, 20.0, late=4)
        case "two growths":
            run.steps(TREE, 20.0)
            run.steps(CHAIN, 20.0)
        case "others' requests":
            run.steps(TREE, 20.0)
            planned = 2
        case "another way to step":
            run.steps(TREE, 20.0)
            run.hindsight.conclude(8, 1, joined=False)
    assert run.change(TREE, planned=planned) == 1.0


def test_a_lone_request_is_judged_without_the_prompts_of_others() -> None:
    with_prompts, without = Run(), Run()
    for run, has_prompts in ((with_prompts, True), (without, False)):
        for number in range(100):
            run.hindsight.take_step(StepReport(1, 1, 0, 1, 0, 200, 5.0, 0.0))
            if has_prompts and number % 4 == 0:
                run.hindsight.take_step(StepReport(1, 301, 300, 1, 0, 200, 9.0, 0.0))
        run.hindsight.conclude(1, 1, joined=True)
    option = np.ones(1), np.array([OFF]), np.ones(1)
    first, second = (run.costs.record.factors(*option, joined=False) for run in (with_prompts, without))
    assert first == second and first != 1.0


def test_a_lone_request_is_judged_alike_however_all_are_told_to_step() -> None:
    factors = []
    for joined in (False, True):
        run = Run()
        run.hindsight.conclude(1, 1, joined=joined)
        for _ in range(50):
            run.hindsight.take_step(StepReport(1, 4, 0, 1, 1, 200, 9.0, 1.0))
            run.hindsight.take_rounds([MENU.index[CHAIN]])
        run.hindsight.conclude(1, 1, joined=joined)
        option = np.ones(1), np.array([MENU.growths.index(CHAIN)]), np.array([4.0])
        factors.append(float(run.costs.record.factors(*option, joined=False)[0, 0]))
    assert factors[0] == factors[1] != 1.0
