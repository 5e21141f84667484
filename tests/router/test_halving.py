"""What a target's choice between rounds at once and in halves says of their costs."""

from __future__ import annotations

from router.halving import Halving


def observed(*, is_split: bool, steps: int = 60) -> Halving:
    halving = Halving()
    for _ in range(steps):
        halving.observe(is_split=is_split)
    return halving


def test_a_target_that_runs_rounds_at_once_where_halves_should_be_faster_makes_these_dearer() -> None:
    halving = observed(is_split=False)
    for _ in range(20):
        halving.heed(1.2)
    assert 1.15 < halving.on_halves <= 1.2 and halving.on_whole == 1.0


def test_a_target_that_splits_rounds_where_these_should_be_slower_makes_those_at_once_dearer() -> None:
    halving = observed(is_split=True)
    for _ in range(20):
        halving.heed(0.9)
    assert 1.05 < halving.on_whole <= 1 / 0.9 and halving.on_halves == 1.0


def test_what_fits_changes_nothing() -> None:
    for is_split, gain in ((True, 1.2), (False, 0.9)):
        halving = observed(is_split=is_split)
        halving.heed(gain)
        assert halving.factor == 1.0


def test_a_target_that_has_just_changed_what_it_runs_says_nothing_yet() -> None:
    halving = observed(is_split=False)
    halving.forget()
    halving.heed(1.5)
    assert halving.factor == 1.0
    assert observed(is_split=False, steps=5).factor == 1.0
