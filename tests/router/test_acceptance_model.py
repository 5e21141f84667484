"""What a round is expected to give, by shape and by request."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.step_table import Floats
from paceline.types import TreeShape
from router.acceptance import AcceptanceModel, RoundsSeen, Skills
from router.shape_menu import ShapeMenu

CHAIN, TREE = TreeShape(3, 1, 4), TreeShape(5, 4, 16)
MENU = ShapeMenu((CHAIN, TREE))


class World:
    """Rounds of requests whose true skills are known."""

    def __init__(self, seed: int = 0) -> None:
        self.model = AcceptanceModel(MENU)
        self.skills = Skills()
        self._rng = np.random.default_rng(seed)

    def rounds(self, slot: int, shape: TreeShape, chance: float | Floats, count: int, *, late: bool = False) -> None:
        """chance: of each level, or of all."""
        index = MENU.index[shape]
        for _ in range(count):
            fails = np.nonzero(self._rng.random(MENU.depth[index]) >= chance)[0]
            accepted = int(fails[0]) if len(fails) else int(MENU.depth[index])
            columns = np.array([slot]), np.array([index]), np.array([0 if late else accepted]), np.array([late])
            self.model.observe(RoundsSeen(*columns), self.skills)

    def length(self, shape: TreeShape, skill: float = 0.0) -> float:
        return float(self.model.lengths(np.array([skill]))[0, MENU.index[shape]])


def true_length(chance: float, depth: int) -> float:
    return 1.0 + float(np.cumprod([chance] * depth).sum())


def test_the_prior_gives_the_lengths_of_the_default_pair() -> None:
    measured = {
        TreeShape(1, 1, 2): 1.66,
        TreeShape(2, 1, 3): 2.04,
        TreeShape(3, 1, 4): 2.29,
        TreeShape(5, 1, 6): 2.53,
        TreeShape(2, 3, 4): 2.20,
        TreeShape(2, 3, 5): 2.29,
        TreeShape(5, 4, 4): 2.36,
        TreeShape(5, 4, 6): 2.73,
        TreeShape(5, 4, 8): 2.91,
        TreeShape(5, 4, 12): 3.12,
        TreeShape(5, 4, 16): 3.26,
        TreeShape(7, 8, 12): 3.18,
        TreeShape(7, 8, 32): 3.73,
    }
    menu = ShapeMenu(tuple(measured))
    lengths = AcceptanceModel(menu).lengths(np.zeros(1))[0]
    assert [lengths[menu.index[shape]] for shape in measured] == pytest.approx(list(measured.values()), rel=0.02)


def test_more_nodes_of_a_growth_never_promise_less() -> None:
    lengths = World().model.lengths(np.array([-1.0, 0.0, 1.0]))
    for members in MENU.of_growth:
        assert (np.diff(lengths[:, members], axis=1) >= 0).all()


def test_a_shape_that_ran_is_known_by_its_rounds() -> None:
    world = World()
    for slot in [world.skills.open() for _ in range(20)]:
        world.rounds(slot, TREE, 0.8, 40)
    assert world.length(TREE) == pytest.approx(true_length(0.8, 5), rel=0.08)


def test_a_shape_that_never_ran_is_judged_by_those_that_did() -> None:
    world = World()
    before = world.length(CHAIN)
    for slot in [world.skills.open() for _ in range(20)]:
        world.rounds(slot, TREE, 0.8, 40)
    assert world.length(CHAIN) > before + 0.3


def test_a_shape_that_runs_alone_for_long_leaves_what_is_expected_of_others() -> None:
    world = World()
    before = [world.length(shape) for shape in (CHAIN, TREE)]
    odds = np.array(
        [2.0, 1.4, 0.6, 0.3, 0.5]
    )  # levels differ more than the prior has it; shift and skills are as it has
    for skill in np.random.default_rng(1).normal(0.0, 0.5, 150):
        slot = world.skills.open()
        world.rounds(slot, TREE, 1.0 / (1.0 + np.exp(-odds - skill)), 30)
        world.model.hear(world.skills, np.array([slot]))
        world.skills.close(slot)
    after = [world.length(shape) for shape in (CHAIN, TREE)]
    assert after[0] / before[0] == pytest.approx(after[1] / before[1], rel=0.06)


def test_a_few_rounds_of_a_new_shape_do_not_outweigh_its_prior() -> None:
    world = World()
    before = world.length(CHAIN)
    world.rounds(world.skills.open(), CHAIN, 0.0, 2)
    assert world.length(CHAIN) > 0.85 * before


def test_requests_are_told_apart_and_shrunk_to_the_average() -> None:
    world = World()
    good, bad = world.skills.open(), world.skills.open()
    for _ in range(30):
        world.rounds(good, TREE, 0.85, 1)
        world.rounds(bad, TREE, 0.35, 1)
    assert world.skills.mean[good] > 0.5
    assert world.skills.mean[bad] < -0.5
    young = world.skills.open()
    world.rounds(young, TREE, 1.0, 1)
    assert 0 < world.skills.mean[young] < world.skills.mean[good]


def test_one_request_that_goes_badly_does_not_make_all_look_bad() -> None:
    world = World()
    before = world.length(TREE)
    slot = world.skills.open()
    world.rounds(slot, TREE, 0.15, 60)
    assert world.length(TREE, float(world.skills.mean[slot])) < 1.4
    assert world.length(TREE) > 0.75 * before


def test_many_requests_that_go_badly_do() -> None:
    world = World()
    for slot in [world.skills.open() for _ in range(20)]:
        world.rounds(slot, TREE, 0.15, 40)
    assert world.length(TREE) < 1.5


def test_a_request_that_ends_early_is_heard_by_what_it_showed() -> None:
    world = World()
    before = world.length(TREE)
    slot = world.skills.open()
    world.rounds(slot, TREE, 0.0, 4)
    assert world.length(TREE) == pytest.approx(before, rel=0.03)
    world.model.hear(world.skills, np.array([slot]))
    world.skills.close(slot)
    assert 0.8 * before < world.length(TREE) < 0.97 * before


def test_what_a_request_showed_on_one_shape_counts_for_all() -> None:
    world = World()
    slot = world.skills.open()
    world.rounds(slot, CHAIN, 0.95, 20)
    skill = float(world.skills.mean[slot])
    assert world.length(TREE, skill) > world.length(TREE) + 0.3


def test_a_request_without_rounds_fades_to_the_average() -> None:
    world = World()
    slot = world.skills.open()
    world.rounds(slot, TREE, 0.1, 20)
    bad = float(world.skills.mean[slot])
    world.skills.fade(np.array([slot]), 400.0)
    assert abs(world.skills.mean[slot]) < 0.2 * abs(bad)


def test_a_slot_that_was_closed_knows_nothing_of_the_request_before() -> None:
    world = World()
    slot = world.skills.open()
    world.rounds(slot, TREE, 0.9, 20)
    world.skills.close(slot)
    assert world.skills.open() == slot
    assert world.skills.mean[slot] == 0


def test_late_trees_make_every_shape_worth_less() -> None:
    world = World()
    before = world.length(TREE)
    world.rounds(world.skills.open(), TREE, 0.6, 100, late=True)
    assert world.model.late_share > 0.5
    assert world.length(TREE) < before - 0.7


def test_slots_grow_as_they_are_asked_for() -> None:
    skills = Skills()
    slots = [skills.open() for _ in range(200)]
    assert len(set(slots)) == 200
    assert len(skills.mean) >= 200
