"""Whether a round's trees are verified at once or in halves, by what both would take."""

import pytest

from target_service.deadline import StepTimes
from target_service.halves import Halves, TreeStep

TIMES = StepTimes([1, 32, 64, 128, 256], [4.8, 5.2, 5.5, 6.5, 8.8])


def play(halves: Halves, *, trees: int, nodes: int, all_trees_ms: float, half_trees_ms: float, steps: int = 200) -> int:
    """A target that runs as it is told to. Returns how often it changed its way."""
    changes = 0
    for _ in range(steps):
        was_split = halves.is_split
        rows = trees * nodes // (2 if was_split else 1)
        device_ms = TIMES.at_warm_up(rows)
        halves.observe(
            TreeStep(
                rows=rows,
                trees=rows // nodes,
                device_ms=device_ms,
                step_ms=device_ms + (0.2 if was_split else 1.5),
                turnaround_ms=half_trees_ms if was_split else all_trees_ms,
                is_queued=was_split,
                is_followed=was_split,
            )
        )
        changes += halves.is_split != was_split
    return changes


def test_many_trees_that_take_long_to_draft_are_verified_in_halves():
    halves = Halves(TIMES, enabled=True)
    assert play(halves, trees=32, nodes=4, all_trees_ms=5.5, half_trees_ms=4.0) == 1
    assert halves.is_split
    at_once, apart = halves.rounds_ms()
    assert at_once == pytest.approx(6.5 + 1.5 + 5.5, rel=0.05)
    assert apart == pytest.approx(2 * (5.5 + 0.2), rel=0.05)


def test_a_few_trees_are_verified_at_once_for_the_weights_are_read_once():
    halves = Halves(TIMES, enabled=True)
    assert play(halves, trees=8, nodes=4, all_trees_ms=3.0, half_trees_ms=2.2) == 0
    assert not halves.is_split


def test_a_draft_that_halves_make_slower_is_found_out_once():
    halves = Halves(TIMES, enabled=True)
    assert play(halves, trees=32, nodes=4, all_trees_ms=5.5, half_trees_ms=12.0, steps=1000) == 2
    assert not halves.is_split


def test_halves_end_where_the_load_does():
    halves = Halves(TIMES, enabled=True)
    play(halves, trees=32, nodes=4, all_trees_ms=5.5, half_trees_ms=4.0)
    assert play(halves, trees=2, nodes=4, all_trees_ms=2.5, half_trees_ms=2.0) == 1
    assert not halves.is_split


def test_nothing_is_split_where_that_is_off():
    halves = Halves(TIMES, enabled=False)
    assert play(halves, trees=32, nodes=4, all_trees_ms=5.5, half_trees_ms=4.0) == 0
