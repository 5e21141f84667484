"""How many of the rounds that were to have a tree had one."""

from __future__ import annotations

import pytest

from router.attendance import Attendance


def seen(planned: tuple[int, int], requests: int, trees: int, *, steps: int = 1000) -> float:
    """The share after so many steps, 10 ms apart. planned: requests, and how many of them were to have a tree."""
    attendance = Attendance(0.0)
    attendance.plan(*planned)
    for step in range(steps):
        attendance.observe(requests, trees, 0.01 * step)
    return attendance.share


def test_of_rounds_that_all_have_their_trees_none_is_missing() -> None:
    assert seen((32, 24), 32, 24) == 1.0


def test_requests_that_have_no_tree_yet_are_missing() -> None:
    assert seen((32, 32), 32, 24) == pytest.approx(0.75, abs=0.02)


def test_a_few_steps_after_a_change_say_little() -> None:
    assert seen((32, 32), 32, 0, steps=2) > 0.85


def test_where_few_are_to_have_trees_nothing_is_learnt() -> None:
    assert seen((32, 2), 32, 0) == 1.0
