"""Which target and which draft a request goes to."""

from __future__ import annotations

import dataclasses

import pytest

from paceline.errors import InvalidInputError
from router.placement import (
    Demand,
    DraftView,
    Head,
    TargetView,
    check_possible,
    choose_draft,
    choose_target,
    keep_draft,
    mismatch,
    pages_of,
)

HEAD = Head("h1", "f1")
TARGET = TargetView(
    address="a:1",
    ready=True,
    model_fingerprint="m",
    context_length=1024,
    page_size=16,
    num_pages=100,
    free_slots=4,
    free_pages=100,
    running_requests=0,
    max_running_requests=8,
)
DRAFT = DraftView(address="d:1", ready=True, head=HEAD, num_sessions=0, max_sessions=8, busy=0.0)
DEMAND = Demand(prompt_len=100, max_tokens=28)


def target(address: str, **values) -> TargetView:
    return dataclasses.replace(TARGET, address=address, **values)


def draft(address: str, **values) -> DraftView:
    return dataclasses.replace(DRAFT, address=address, **values)


def chosen(*targets: TargetView, demand: Demand = DEMAND) -> str | None:
    best = choose_target(targets, demand)
    return None if best is None else best.address


def test_the_least_loaded_target_by_share_takes_the_request() -> None:
    small = target("a:1", running_requests=3, max_running_requests=4)
    large = target("b:1", running_requests=8, max_running_requests=64)
    assert chosen(small, large) == "b:1"


def test_a_target_without_slot_pages_or_readiness_takes_none() -> None:
    assert pages_of(DEMAND, TARGET) == 12
    assert chosen(target("a:1", free_slots=0)) is None
    assert chosen(target("a:1", free_pages=11)) is None
    assert chosen(target("a:1", free_pages=12)) == "a:1"
    assert chosen(target("a:1", ready=False)) is None


def test_max_tokens_is_counted_as_far_as_the_context_goes() -> None:
    demand = Demand(prompt_len=1000, max_tokens=100_000)
    assert pages_of(demand, TARGET) == (1024 + 64) // 16


def test_a_replay_avoids_the_target_that_failed_unless_no_other_can() -> None:
    again = dataclasses.replace(DEMAND, avoid="a:1")
    assert chosen(target("a:1"), target("b:1", running_requests=7), demand=again) == "b:1"
    assert chosen(target("a:1"), target("b:1", free_slots=0), demand=again) == "a:1"


def test_a_replay_stays_with_its_model() -> None:
    again = dataclasses.replace(DEMAND, model_fingerprint="other")
    assert chosen(target("a:1"), target("b:1", model_fingerprint="other"), demand=again) == "b:1"
    assert chosen(target("a:1"), demand=again) is None


def test_a_request_that_no_pool_will_ever_hold_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="need 12 pages, the largest target has 11"):
        check_possible(DEMAND, [target("a:1", num_pages=11), target("b:1", num_pages=8)])
    with pytest.raises(InvalidInputError, match="2000 tokens; a context of 1024"):
        check_possible(Demand(2000, 1), [TARGET])
    check_possible(DEMAND, [target("a:1", num_pages=11), target("b:1", num_pages=12)])


def test_the_draft_with_the_smallest_share_of_sessions_is_chosen() -> None:
    drafts = [draft("d:1", num_sessions=2, max_sessions=4), draft("d:2", num_sessions=3, max_sessions=64)]
    assert choose_draft(drafts, HEAD, links={}) == "d:2"


def test_between_equals_the_less_busy_draft_is_chosen() -> None:
    assert choose_draft([draft("d:1", busy=0.5), draft("d:2", busy=0.1)], HEAD, links={}) == "d:2"


def test_a_draft_of_another_head_is_never_paired() -> None:
    for other in (Head("h2", "f1"), Head("h1", "f2"), Head("", "")):
        assert choose_draft([draft("d:1", head=other)], HEAD, links={}) == ""
    assert choose_draft([draft("d:1", head=Head("", ""))], Head("", ""), links={}) == ""


def test_a_draft_that_is_not_ready_is_not_chosen() -> None:
    assert choose_draft([draft("d:1", ready=False)], HEAD, links={}) == ""


def test_a_draft_whose_link_is_broken_comes_last() -> None:
    drafts = [draft("d:1"), draft("d:2", num_sessions=7)]
    assert choose_draft(drafts, HEAD, links={"d:1": False}) == "d:2"
    assert choose_draft(drafts[:1], HEAD, links={"d:1": False}) == "d:1"


def test_a_mismatch_names_both_heads() -> None:
    reason = mismatch(Head("h2", "f1"), [HEAD])
    assert "h2" in reason
    assert "h1" in reason
    assert mismatch(HEAD, [HEAD]) == ""
    assert mismatch(HEAD, []) == ""


def test_the_scarcest_of_sessions_pages_and_time_counts() -> None:
    few_pages = draft("d:1", num_sessions=1, page_share=0.9)
    no_time = draft("d:2", num_sessions=2, busy=0.6, busy_sessions=2)
    many_sessions = draft("d:3", num_sessions=5)
    assert few_pages.load(more=1) == 0.9
    assert no_time.load(more=1) == pytest.approx(0.9)
    assert many_sessions.load(more=1) == 0.75
    assert choose_draft([few_pages, no_time, many_sessions], HEAD, links={}) == "d:3"


def test_a_draft_that_joins_takes_the_next_sessions_until_it_has_its_share() -> None:
    sessions = {"d:1": 6, "d:2": 0}
    taken = []
    for _ in range(7):
        views = [draft(address, num_sessions=count) for address, count in sessions.items()]
        address = choose_draft(views, HEAD, links={})
        sessions[address] += 1
        taken.append(address)
    assert taken[:6] == 6 * ["d:2"]


def test_a_running_request_keeps_its_draft_however_loaded_it_is() -> None:
    drafts = [draft("d:1", num_sessions=8), draft("d:2")]
    assert keep_draft("d:1", drafts, HEAD, links={}) == "d:1"


def test_a_running_request_leaves_a_draft_that_drains_or_that_its_target_cannot_reach() -> None:
    drafts = [draft("d:1"), draft("d:2", num_sessions=3), draft("d:3", num_sessions=2, head=Head("h2", "f1"))]
    draining = [dataclasses.replace(drafts[0], ready=False), *drafts[1:]]
    assert keep_draft("d:1", draining, HEAD, links={}) == "d:2"
    assert keep_draft("d:1", drafts, HEAD, links={"d:1": False}) == "d:2"
    assert keep_draft("gone", drafts[1:], HEAD, links={}) == "d:2"


def test_a_running_request_stays_where_no_other_draft_can_be_reached() -> None:
    drafts = [draft("d:1"), draft("d:2")]
    assert keep_draft("d:1", drafts, HEAD, links={"d:1": False, "d:2": False}) == "d:1"
    assert keep_draft("gone", [], HEAD, links={}) == "gone"
