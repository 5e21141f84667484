"""The queue: its order within a tenant, its shares between tenants, its bound."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from paceline.errors import CapacityError
from router.queue import Claim, RequestQueue, rank_of

AGEING_S = 10.0


def claim(at: float = 0.0, *, tenant: str = "", cost: float = 10, priority: int = 0) -> Claim:
    return Claim(tenant, cost, rank_of(at, priority, ageing_s=AGEING_S))


def filled(*claims: Claim, max_len: int = 1000) -> RequestQueue[str]:
    """Items a, b, c ... with these claims."""
    queue: RequestQueue[str] = RequestQueue(max_len)
    for index, each in enumerate(claims):
        queue.push(chr(ord("a") + index), each)
    return queue


def drained(queue: RequestQueue[str]) -> str:
    """The items in the order of their turns."""
    order = ""
    while (item := queue.head()) is not None:
        assert queue.head() == item
        queue.take(item)
        order += item
    return order


def test_requests_of_a_tenant_leave_in_the_order_in_which_they_came() -> None:
    assert drained(filled(claim(0), claim(1), claim(1), claim(2))) == "abcd"


def test_a_higher_priority_leaves_first() -> None:
    assert drained(filled(claim(0), claim(1, priority=1), claim(2, priority=-1), claim(3, priority=2))) == "dbac"


def test_none_starves_whatever_the_priority_of_those_that_come_later() -> None:
    later = [claim(at, priority=3) for at in range(1, 60)]
    order = drained(filled(claim(0, priority=0), *later))
    assert order.index("a") == sum(each.rank < 0 for each in later) == 29


def test_tenants_take_turns_however_many_requests_one_has() -> None:
    many = [claim(at, tenant="x") for at in range(6)]
    few = [claim(9, tenant="y"), claim(9, tenant="y")]
    assert drained(filled(*many, *few)) == "agbhcdef"


def test_shares_are_of_tokens_not_of_requests() -> None:
    large = [claim(tenant="x", cost=400) for _ in range(5)]
    small = [claim(tenant="y", cost=100) for _ in range(20)]
    served: Counter[str] = Counter()
    queue = filled(*large, *small)
    for _ in range(15):
        item = queue.head()
        assert item is not None
        queue.take(item)
        served["x" if item < "f" else "y"] += 400 if item < "f" else 100
    assert served == {"x": 1200, "y": 1200}


def test_a_weight_multiplies_a_share() -> None:
    queue: RequestQueue[int] = RequestQueue(1000)
    for index in range(40):
        queue.push(index, claim(tenant="x"), weight=3.0)
        queue.push(100 + index, claim(tenant="y"))
    first = []
    for _ in range(40):
        item = queue.head()
        assert item is not None
        queue.take(item)
        first.append(item)
    assert sum(item < 100 for item in first) == 30


def test_no_tenant_falls_behind_its_share_by_more_than_one_request() -> None:
    """Between any two tenants that always wait; random costs, ten seeds."""
    for seed in range(10):
        generator = random.Random(seed)
        queue: RequestQueue[tuple[int, int, int]] = RequestQueue(10_000)
        for index in range(600):
            tenant, cost = index % 3, generator.randint(1, 500)
            queue.push((tenant, index, cost), claim(tenant=str(tenant), cost=cost))
        served = [0, 0, 0]
        for _ in range(300):
            item = queue.head()
            assert item is not None
            queue.take(item)
            served[item[0]] += item[2]
            assert max(served) - min(served) <= 500


def test_an_idle_tenant_saves_nothing_up() -> None:
    queue = filled(*(claim(tenant="x") for _ in range(4)))
    for item in "ab":
        assert queue.head() == item
        queue.take(item)
    for item in "efg":
        queue.push(item, claim(tenant="y"))
    assert drained(queue) == "cedfg"


def test_what_a_request_cost_beyond_its_estimate_is_paid_later() -> None:
    queue = filled(*(claim(tenant="x") for _ in range(4)), *(claim(tenant="y") for _ in range(4)))
    assert queue.head() == "a"
    queue.take("a")
    queue.settle("x", -20)
    queue.settle("nobody", -20)
    assert drained(queue) == "efgbhcd"


def test_a_full_queue_refuses_newcomers_and_says_what_to_do() -> None:
    queue = filled(claim(), max_len=1)
    with pytest.raises(CapacityError, match=r"1 requests wait; .*--max-queued-requests"):
        queue.push("b", claim())


def test_a_full_queue_makes_room_for_a_tenant_with_fewer_requests() -> None:
    queue = filled(claim(0, tenant="x"), claim(1, tenant="x"), claim(2, tenant="x"), max_len=3)
    assert queue.push("y", claim(3, tenant="y")) == "c"
    assert len(queue) == 3
    with pytest.raises(CapacityError):
        queue.push("z", claim(3, tenant="y"))
    with pytest.raises(CapacityError):
        queue.push("z", claim(3, tenant="x"))


def test_a_full_queue_makes_room_for_a_more_urgent_request_of_the_same_tenant() -> None:
    queue = filled(claim(0, priority=1), claim(1), max_len=2)
    assert queue.push("u", claim(2, priority=2)) == "b"
    assert drained(queue) == "ua"


def test_a_replay_goes_to_the_front_even_of_a_full_queue_and_pays_nothing() -> None:
    queue = filled(claim(tenant="x"), claim(tenant="y"), max_len=2)
    queue.push_front("r")
    assert list(queue.returned()) == ["r"]
    assert len(queue) == 3
    queue.take("r")
    assert drained(queue) == "ab"


def test_a_request_leaves_from_anywhere_and_twice_is_fine() -> None:
    queue = filled(claim(0), claim(1), claim(2))
    queue.discard("b")
    queue.discard("b")
    assert (len(queue), queue.cost) == (2, 20)
    assert drained(queue) == "ac"
    assert (len(queue), queue.num_tenants) == (0, 0)


def test_what_is_ahead_counts_the_own_tenant_by_rank_and_the_others_by_their_share() -> None:
    queue = filled(claim(0, tenant="x"), claim(5, tenant="x"), *(claim(tenant="y", cost=30) for _ in range(9)))
    queue.push("z", claim(tenant="z", cost=5))
    assert queue.cost_ahead(claim(9, tenant="x")) == 20 + 30 + 5
    assert queue.cost_ahead(claim(9, tenant="x", priority=1)) == 0 + 10 + 5
    assert queue.cost_ahead(claim(9, tenant="new", cost=1000)) == 270 + 20 + 5
