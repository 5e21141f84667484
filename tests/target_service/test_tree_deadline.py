"""How long a tree is waited for: twice (expected accepted length - 1) plain steps."""

import numpy as np
import pytest

from paceline.stats import SpeculationStats
from target_service.deadline import MIN_ROUNDS, PRIOR_ACCEPTED_LENGTH, StepTimes, TreeDeadline
from target_service.patience import Patience
from target_service.speculation_stats import WINDOW_ROUNDS, AcceptanceWindow, RoundCounts
from target_service.tree_wait import TreeWait


def deadline(*accepted: int, fixed_ms: float | None = None) -> TreeDeadline:
    window = AcceptanceWindow()
    window.extend(accepted)
    return TreeDeadline(StepTimes([1, 8], [10.0, 80.0]), window, fixed_ms=fixed_ms)


def test_before_anything_was_seen_a_prior_holds():
    prior_s = 2 * (PRIOR_ACCEPTED_LENGTH - 1) * 0.010
    assert deadline().seconds(1) == pytest.approx(prior_s)
    assert deadline(5, 5).seconds(1) == pytest.approx(prior_s)


def test_it_follows_the_accepted_length_and_the_batch():
    assert deadline(*[2] * MIN_ROUNDS).seconds(1) == pytest.approx(0.040)
    assert deadline(*[2] * MIN_ROUNDS).seconds(8) == pytest.approx(0.320)
    assert deadline(*[2] * MIN_ROUNDS).seconds(0) == pytest.approx(0.040)


def test_a_window_without_an_accepted_draft_still_leaves_a_chance():
    assert deadline(*[0] * MIN_ROUNDS).seconds(1) == pytest.approx(0.020)


def test_a_flag_fixes_it():
    assert deadline(*[2] * MIN_ROUNDS, fixed_ms=7).seconds(8) == pytest.approx(0.007)


def test_step_times_follow_what_is_seen():
    times = StepTimes([1, 8], [10.0, 80.0])
    for _ in range(200):
        times.observe(8, 160.0)
    assert times.expect(1) == pytest.approx(20.0, rel=0.01)


def test_acceptance_by_depth_is_the_share_of_rounds_that_got_so_far():
    window = AcceptanceWindow()
    window.extend([0, 1, 3, 3])
    assert window.mean_accepted_length() == pytest.approx(2.75)
    assert window.accepted_by_depth() == [0.75, 0.5, 0.5]


def test_the_window_forgets_the_oldest_rounds():
    window = AcceptanceWindow()
    window.extend([5] * 100)
    window.extend([1, 0] * (WINDOW_ROUNDS // 2))
    assert len(window) == WINDOW_ROUNDS
    assert window.mean_accepted_length() == pytest.approx(1.5)
    assert window.accepted_by_depth() == [0.5]


def test_counts_of_rounds_are_each_requests_own():
    counts = RoundCounts(3)
    both, first, nobody = np.array([2, 0]), np.array([2]), np.zeros(0, np.int64)
    counts.add_rounds(both, late=nobody)
    counts.add_trees(both, num_nodes=np.array([16, 6]), accept_length=np.array([3, 0]))
    counts.add_rounds(both, late=np.array([0]))
    counts.add_trees(first, num_nodes=np.array([6]), accept_length=np.array([1]))
    assert counts.of(2) == SpeculationStats(2, 2, 4, 20, (2, 1, 1), 0)
    assert counts.of(0) == SpeculationStats(1, 2, 0, 5, (), 1)
    counts.reset(2)
    assert (counts.of(2), counts.of(1)) == (SpeculationStats(), SpeculationStats())


def test_a_draft_in_time_is_always_asked():
    patience = Patience()
    for _ in range(50):
        assert patience.may_ask()
        patience.note(in_time=True)


def test_a_draft_that_is_always_late_is_asked_now_and_then():
    patience = Patience()
    asked = 0
    for _ in range(100):
        if patience.may_ask():
            asked += 1
            patience.note(in_time=False)
    assert asked == 4 + 96 // 16


def test_a_draft_that_has_caught_up_is_asked_again():
    patience = Patience()
    for _ in range(4):
        patience.note(in_time=False)
    assert not patience.may_ask()
    patience.note(in_time=True)
    assert patience.may_ask()


def test_one_late_batch_of_many_trees_is_no_reason_to_stop_asking():
    patience = Patience()
    for in_time in (1.0, 0.0, 0.9, 0.0, 1.0, 0.4):
        assert patience.may_ask()
        patience.note(in_time=in_time)
    assert patience.may_ask()


def test_waits_are_short_until_they_take_a_plain_step_and_again_when_they_do_not():
    wait = TreeWait(StepTimes([1, 8], [10.0, 80.0]))
    assert wait.is_short
    for _ in range(50):
        wait.observe(0.012)
    assert not wait.is_short
    for _ in range(50):
        wait.observe(0.004)
    assert wait.is_short
