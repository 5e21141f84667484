"""Each tenant's rate at the door: who waits, who is refused, who is forgotten."""

from __future__ import annotations

import asyncio
import time

import pytest
from asyncio_throttle.throttler import Throttler

from paceline.errors import CapacityError
from router.tenants import RateLimit, TenantDoor
from tests.support.waiting import WAIT_S


def door(*, num_requests: int = 2, period_s: float = 0.2, wait_s: float = WAIT_S, max_tenants: int = 8) -> TenantDoor:
    limit = RateLimit(num_requests, period_s, wait_s=wait_s, max_tenants=max_tenants)
    return TenantDoor(limit, clock=time.monotonic)


async def test_requests_above_the_rate_wait_and_start_in_order_of_arrival() -> None:
    at_door, began, order = door(), time.monotonic(), []

    async def enter(number: int) -> None:
        await at_door.enter("x")
        order.append((number, time.monotonic() - began))

    await asyncio.gather(*(enter(number) for number in range(4)))
    assert [number for number, _ in order] == [0, 1, 2, 3]
    assert order[2][1] >= 0.2


async def test_one_tenants_rate_is_not_anothers() -> None:
    at_door = door(period_s=60.0, wait_s=0.05)
    for tenant in ("x", "x", "y", "y"):
        await at_door.enter(tenant)
    with pytest.raises(CapacityError, match="tenant 'x' may start 2 requests in 60 s") as caught:
        await at_door.enter("x")
    assert caught.value.retry_after_s == 60.0


async def test_a_request_that_cannot_start_within_the_wait_is_refused_at_once() -> None:
    at_door = door(num_requests=1, period_s=600.0, wait_s=300.0)
    await at_door.enter("x")
    waiting = [asyncio.create_task(at_door.enter("x")) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(CapacityError):
        await asyncio.wait_for(at_door.enter("x"), WAIT_S)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_deadline_shortens_the_wait() -> None:
    at_door = door(num_requests=1, period_s=600.0, wait_s=300.0)
    await at_door.enter("x")
    with pytest.raises(CapacityError):
        await asyncio.wait_for(at_door.enter("x", left_s=0.02), WAIT_S)


async def test_a_client_that_leaves_the_door_takes_nothing_from_the_rate() -> None:
    at_door = door(num_requests=1, period_s=0.1, wait_s=WAIT_S)
    await at_door.enter("x")
    leaver = asyncio.create_task(at_door.enter("x"))
    follower = asyncio.create_task(at_door.enter("x"))
    await asyncio.sleep(0)
    leaver.cancel()
    await asyncio.wait_for(follower, WAIT_S)


async def test_idle_tenants_are_forgotten_and_busy_ones_bound_the_number() -> None:
    now = 0.0
    at_door = TenantDoor(RateLimit(2, 1.0, wait_s=1.0, max_tenants=3), clock=lambda: now)
    for tenant in ("x", "y", "z"):
        await at_door.enter(tenant)
    with pytest.raises(CapacityError, match=r"3 tenants send requests already; .*--max-tenants"):
        await at_door.enter("new")
    now = 1.5
    await at_door.enter("new")
    assert len(at_door) == 1


async def test_the_more_tenants_wait_the_less_often_each_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """400 that looked every 10 ms would look 40,000 times a second."""
    at_door = door(num_requests=1, period_s=60.0, wait_s=30.0, max_tenants=500)
    for tenant in range(400):
        await at_door.enter(str(tenant))
    intervals_s: dict[Throttler, float] = {}
    flush = Throttler.flush

    def noted(throttler: Throttler) -> None:
        intervals_s[throttler] = throttler.retry_interval
        flush(throttler)

    monkeypatch.setattr(Throttler, "flush", noted)
    waiting = [asyncio.create_task(at_door.enter(str(tenant))) for tenant in range(400)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(intervals_s) == 400
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert min(intervals_s.values()) == 0.01
    assert sum(1 / interval_s for interval_s in intervals_s.values()) < 12_000
