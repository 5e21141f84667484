"""The queue's order and bound, and the arithmetic of credits."""

from __future__ import annotations

import pytest

from paceline.errors import CapacityError
from router.credits import CreditLedger
from router.queue import RequestQueue


def test_requests_leave_in_the_order_in_which_they_came() -> None:
    queue: RequestQueue[str] = RequestQueue(3)
    for item in "abc":
        queue.push(item)
    assert list(queue) == ["a", "b", "c"]


def test_a_full_queue_refuses_newcomers_and_says_what_to_do() -> None:
    queue: RequestQueue[str] = RequestQueue(1)
    queue.push("a")
    with pytest.raises(CapacityError, match=r"1 requests wait; .*--max-queued-requests"):
        queue.push("b")


def test_a_replay_goes_to_the_front_even_of_a_full_queue() -> None:
    queue: RequestQueue[str] = RequestQueue(1)
    queue.push("a")
    queue.push_front("b")
    assert list(queue) == ["b", "a"]


def test_a_request_leaves_from_anywhere_and_twice_is_fine() -> None:
    queue: RequestQueue[str] = RequestQueue(3)
    for item in "abc":
        queue.push(item)
    queue.discard("b")
    queue.discard("b")
    assert list(queue) == ["a", "c"]


def test_spending_is_against_cumulative_counts() -> None:
    ledger = CreditLedger()
    ledger.grant(slots=2, pages=10)
    ledger.spend(4)
    ledger.spend(6)
    assert not ledger.covers(0)
    ledger.grant(slots=3, pages=14)
    assert ledger.covers(4)
    assert not ledger.covers(5)
    assert (ledger.free_slots, ledger.free_pages) == (1, 4)


def test_a_grant_may_fall_below_what_is_spent() -> None:
    ledger = CreditLedger()
    ledger.grant(slots=4, pages=100)
    for _ in range(3):
        ledger.spend(20)
    ledger.grant(slots=2, pages=50)
    assert (ledger.free_slots, ledger.free_pages) == (0, 0)
    ledger.grant(slots=4, pages=100)
    assert ledger.covers(40)
