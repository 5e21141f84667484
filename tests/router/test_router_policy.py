"""Whether to speculate: policy, load, and the request's own word."""

from __future__ import annotations

from paceline.types import TreeShape
from router.policy import Override, Policy, PolicyKind, Switch, decide, initial_switch, turned, wants_draft

SHAPE = TreeShape(5, 4, 16)
OWN = TreeShape(3, 1, 4)
ALWAYS = Policy(PolicyKind.ALWAYS, SHAPE)
OFF = Policy(PolicyKind.OFF, SHAPE)
THRESHOLD = Policy(PolicyKind.THRESHOLD, SHAPE, threshold=8, hysteresis=2)


def decision(policy: Policy, *, override: Override | None = None, draft: str = "d:1", switch: Switch | None = None):
    return decide(policy, switch or initial_switch(policy), override=override or Override(), draft=draft)


def test_always_speculates_at_any_load() -> None:
    made = decision(ALWAYS)
    assert (made.draft, made.reason) == ("d:1", "policy:always")
    assert made.shape_for(1) == made.shape_for(500) == SHAPE
    assert turned(ALWAYS, initial_switch(ALWAYS), 500) is not None
    assert turned(ALWAYS, initial_switch(ALWAYS), 500).on


def test_off_names_no_draft() -> None:
    assert decision(OFF).draft == ""
    assert decision(OFF).reason == "policy:off"
    assert not wants_draft(OFF, Override())


def test_without_a_draft_nothing_is_speculated() -> None:
    made = decision(ALWAYS, draft="")
    assert (made.draft, made.ladder, made.reason) == ("", (), "no-draft")


def test_a_request_may_decline_or_bring_its_own_shape() -> None:
    declined = decision(ALWAYS, override=Override(disable=True))
    assert (declined.draft, declined.reason) == ("", "request")
    for policy in (ALWAYS, OFF, THRESHOLD):
        own = decision(policy, override=Override(shape=OWN))
        assert (own.shape_for(500), own.reason) == (OWN, "request")
        assert wants_draft(policy, Override(shape=OWN))


def test_a_burst_turns_the_ladder_off_without_a_word_from_the_router() -> None:
    made = decision(THRESHOLD)
    assert made.shape_for(8) == SHAPE
    assert made.shape_for(9) is None


def test_above_the_threshold_it_goes_off_and_keeps_its_draft() -> None:
    switch = turned(THRESHOLD, initial_switch(THRESHOLD), 9)
    made = decision(THRESHOLD, switch=switch)
    assert (made.draft, made.reason) == ("d:1", "threshold:9>8")
    assert made.shape_for(7) is None
    assert made.shape_for(6) == SHAPE


def test_it_comes_back_only_below_the_hysteresis() -> None:
    off = turned(THRESHOLD, initial_switch(THRESHOLD), 9)
    assert turned(THRESHOLD, off, 8) is off
    assert turned(THRESHOLD, off, 7) is off
    on = turned(THRESHOLD, off, 6)
    assert (on.on, on.reason) == (True, "threshold:6<=6")


def test_a_batch_that_hovers_at_the_threshold_flips_once() -> None:
    switch = initial_switch(THRESHOLD)
    flips = 0
    for decoding in [7, 8, 9, 8, 9, 7, 8, 9, 10, 8] * 20:
        after = turned(THRESHOLD, switch, decoding)
        flips += after is not switch
        switch = after
    assert flips == 1


def test_a_threshold_of_one_still_comes_back_and_never_means_no_bound() -> None:
    policy = Policy(PolicyKind.THRESHOLD, SHAPE, threshold=1, hysteresis=4)
    off = turned(policy, initial_switch(policy), 2)
    made = decision(policy, switch=off)
    assert made.shape_for(1) == SHAPE
    assert made.shape_for(2) is None
    assert turned(policy, off, 1).on
