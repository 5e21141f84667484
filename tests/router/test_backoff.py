"""How long a router waits between two attempts to reach a peer."""

from __future__ import annotations

import random

from router.backoff import Backoff


def test_a_peer_that_was_away_for_long_is_tried_each_second_and_not_much_more_often() -> None:
    backoff = Backoff(random.Random(1))
    waits_s = [backoff.next_s() for _ in range(60)]
    assert waits_s[0] <= 0.1
    assert all(0.5 <= wait_s <= 1.0 for wait_s in waits_s[5:])


def test_after_a_success_the_next_attempt_comes_soon() -> None:
    backoff = Backoff(random.Random(1))
    for _ in range(9):
        backoff.next_s()
    backoff.reset()
    assert backoff.next_s() <= 0.1
