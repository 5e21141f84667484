"""What a step of train-head tells of its pace and of the time that is left."""

from __future__ import annotations

import pytest

from training.progress import Progress


def test_a_step_says_what_it_will_take_and_then_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = 0.0
    progress = Progress("train", total=100, start=20, unit="steps", clock=lambda: now_s)
    for passed_s in (2.0, 2.0, 2.0, 10.0):
        now_s += passed_s
        progress.advance(2)
    progress.close()
    assert capsys.readouterr().err.splitlines() == [
        "train: 01:14 left at the pace so far",
        "train: 28 of 100 steps, 0.50 steps/s, 02:24 left",
        "train: 28 of 100 steps, 0.50 steps/s, 02:24 left",
    ]


def test_a_step_that_is_over_has_nothing_left(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = 0.0
    progress = Progress("train", total=4, start=0, unit="steps", clock=lambda: now_s)
    now_s = 8.0
    progress.advance(4)
    progress.close()
    assert capsys.readouterr().err == "train: 4 of 4 steps, 0.50 steps/s\n"
