"""What the router learns of queue and targets, and what it says of a deadline by it."""

from __future__ import annotations

import dataclasses

import pytest

from paceline.errors import CapacityError, DeadlineError
from router.deadlines import Outlook, check_deadline
from router.peer import TargetLoad
from router.rates import MEMORY_S, DrainRate, RecentRatio, StepTimes


def test_a_ratio_follows_what_is_recent_and_forgets_what_is_old() -> None:
    ratio = RecentRatio(10.0)
    assert ratio.read(0.0) is None
    ratio.add(100, 1, now=0.0)
    ratio.add(10, 1, now=1.0)
    assert ratio.read(1.0) == pytest.approx((100 * 0.9048 + 10) / 1.9048, rel=1e-3)
    for second in range(2, 60):
        ratio.add(10, 1, now=second)
    assert ratio.read(59.0) == pytest.approx(10, rel=0.05)
    assert ratio.read(59.0 + 10.1) is None


def test_a_queue_drains_at_the_rate_at_which_its_requests_are_taken_while_some_wait() -> None:
    drain = DrainRate()
    drain.took(1000, now=0.0)
    assert drain.read(0.0) is None
    for second in range(1, 21):
        drain.waits(second - 1)
        drain.took(50, now=second)
    assert drain.read(20.0) == pytest.approx(50)
    drain.empty()
    drain.took(1000, now=25.0)
    assert drain.read(25.0) == pytest.approx(50)


def test_a_queue_from_which_nothing_leaves_drains_ever_more_slowly() -> None:
    drain = DrainRate()
    drain.waits(0.0)
    drain.took(50, now=1.0)
    assert drain.read(1.0) == pytest.approx(50)
    assert drain.read(1.0 + MEMORY_S) == pytest.approx(25)


def observed(times: StepTimes, *steps: TargetLoad, new_tokens: int = 4, num_streams: int = 2) -> StepTimes:
    for second, load in enumerate(steps):
        times.observe(load, new_tokens=new_tokens, num_streams=num_streams, now=second / 100)
    return times


DECODE = TargetLoad(decoding_requests=2, rows=8, step_ms=9.0, tree_wait_ms=1.0)
MIXED = TargetLoad(decoding_requests=2, prefilling_requests=1, rows=108, prefill_tokens=100, step_ms=30.0)


def test_a_request_takes_its_prompt_and_its_tokens_at_the_speed_of_the_last_steps() -> None:
    times = observed(StepTimes(), *(DECODE, MIXED) * 200)
    assert times.decode_ms == pytest.approx(10.0, rel=0.02)
    assert times.prompt_ms == pytest.approx(0.2, rel=0.02)
    assert times.tokens_per_step(4.0) == pytest.approx(2.0)
    assert times.service_s(100, 41, now=4.0) == pytest.approx((100 * 0.2 + 40 * 5.0) / 1e3, rel=0.02)


def test_a_slow_moment_refuses_nobody() -> None:
    times = observed(StepTimes(), *(DECODE,) * 400)
    slow = dataclasses.replace(DECODE, step_ms=99.0)
    for step in range(20):
        times.observe(slow, new_tokens=4, num_streams=2, now=4.0 + step / 10)
    assert times.decode_ms is not None
    assert times.decode_ms > 80
    assert times.service_s(1, 101, now=6.0) == pytest.approx(100 * 5.0 / 1e3, rel=0.5)


def test_prompts_in_steps_of_their_own_count_against_the_tokens_a_step() -> None:
    times = StepTimes()
    alone = TargetLoad(decoding_requests=2, prefilling_requests=1, rows=100, prefill_tokens=100, step_ms=20.0)
    for second in range(40):
        times.observe(alone, new_tokens=0, num_streams=2, now=second / 50)
        times.observe(MIXED, new_tokens=4, num_streams=2, now=second / 50 + 0.01)
    assert times.tokens_per_step(0.8, beside_prompts=True) == pytest.approx(1.0, rel=0.02)


def test_a_change_between_two_steps_teaches_nothing() -> None:
    times = observed(StepTimes(), DECODE)
    times.observe(TargetLoad(decoding_requests=1), new_tokens=0, num_streams=1, now=0.02)
    assert times.decode_ms == pytest.approx(10.0)


def test_old_step_times_refuse_nobody() -> None:
    times = observed(StepTimes(), DECODE, MIXED)
    assert times.service_s(1, 2, now=MEMORY_S) is not None
    assert times.service_s(1, 2, now=MEMORY_S + 0.1) is None


def test_a_deadline_that_no_target_could_meet_is_told_apart_from_a_queue_that_is_too_long() -> None:
    check_deadline(Outlook(wait_s=3.0, service_s=2.0), left_s=5.1)
    check_deadline(Outlook(wait_s=None, service_s=None), left_s=0.01)
    with pytest.raises(DeadlineError, match=r"would take about 2 s .* allow more time or ask for fewer tokens"):
        check_deadline(Outlook(wait_s=0.0, service_s=2.0), left_s=1.5)
    with pytest.raises(CapacityError, match=r"wait about 3 s .* allow 0.5 s more, or try again") as caught:
        check_deadline(Outlook(wait_s=3.0, service_s=2.0), left_s=4.5)
    assert caught.value.retry_after_s == pytest.approx(0.5)
    with pytest.raises(DeadlineError, match="passed already"):
        check_deadline(Outlook(wait_s=None, service_s=None), left_s=0.0)
