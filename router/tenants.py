"""The door: how often each tenant's requests may start."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from asyncio_throttle.throttler import Throttler

from paceline.errors import CapacityError

_POLL_S = 0.01
_MAX_POLLS_PER_S = 3000  # of the first tenants together; one takes 6 us


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most num_requests starts of a tenant in any period_s; a request may wait wait_s for its start."""

    num_requests: int
    period_s: float
    wait_s: float
    max_tenants: int


@dataclass(slots=True)
class _Tenant:
    throttler: Throttler
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    num_waiting: int = 0
    started_at: float = 0.0


class TenantDoor:
    """One asyncio-throttle a tenant, which keeps the rate of starts and nothing else.

    It polls, and lets pass whoever polls first; so one request of a tenant polls at a time, in order of arrival, and
    the more tenants wait, the less often. Those that cannot pass within the wait are refused at once. Tenants without
    a start in the last period are forgotten.
    """

    def __init__(self, limit: RateLimit, *, clock: Callable[[], float]) -> None:
        self._limit = limit
        self._clock = clock
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()  # by their last arrival
        self._num_polling = 0  # tenants whose first request waits

    def __len__(self) -> int:
        return len(self._tenants)

    async def enter(self, name: str, *, left_s: float | None = None) -> None:
        """Returns when a request of the tenant may start; waits wait_s at most, and left_s where that is less.

        Raises CapacityError, with a retry hint, where the time does not do or too many tenants send.
        """
        tenant = self._tenant(name)
        limit = self._limit
        if tenant.num_waiting >= limit.num_requests * (1 + limit.wait_s / limit.period_s):
            raise self._refusal(name)
        wait_s = limit.wait_s if left_s is None else min(limit.wait_s, left_s)
        tenant.num_waiting += 1
        try:
            await asyncio.wait_for(self._take_turn(tenant), wait_s)
        except TimeoutError:
            raise self._refusal(name) from None
        finally:
            tenant.num_waiting -= 1
            tenant.started_at = self._clock()

    async def _take_turn(self, tenant: _Tenant) -> None:
        async with tenant.turn:
            self._num_polling += 1
            tenant.throttler.retry_interval = max(_POLL_S, self._num_polling / _MAX_POLLS_PER_S)
            try:
                async with tenant.throttler:
                    pass
            finally:
                self._num_polling -= 1

    def _tenant(self, name: str) -> _Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            self._forget_idle()
            if len(self._tenants) >= self._limit.max_tenants:
                raise CapacityError(
                    f"{self._limit.max_tenants} tenants send requests already; try again later or raise --max-tenants",
                    retry_after_s=self._limit.period_s,
                )
            tenant = _Tenant(Throttler(self._limit.num_requests, period=self._limit.period_s))
            self._tenants[name] = tenant
        self._tenants.move_to_end(name)
        return tenant

    def _forget_idle(self) -> None:
        since = self._clock() - self._limit.period_s
        while self._tenants:
            name, tenant = next(iter(self._tenants.items()))
            if tenant.num_waiting or tenant.started_at > since:
                return
            del self._tenants[name]

    def _refusal(self, name: str) -> CapacityError:
        limit = self._limit
        who = f"tenant {name!r}" if name else "requests without a tenant"
        return CapacityError(
            f"{who} may start {limit.num_requests} requests in {limit.period_s:g} s and has; send fewer, or raise "
            "--tenant-rate-limit",
            retry_after_s=limit.period_s,
        )
