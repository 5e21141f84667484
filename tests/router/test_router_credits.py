"""The arithmetic of credits."""

from __future__ import annotations

from router.credits import CreditLedger


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
