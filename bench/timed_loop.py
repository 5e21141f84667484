"""The part of a load that one client process plays, by the clock."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bench.load import Load
from bench.outcome import Outcome
from bench.sent_request import SentRequest
from bench.workload import Variant, Workload
from client.aio import AsyncPacelineClient
from client.request import Sampling


@dataclass(frozen=True, slots=True)
class TimedShare:
    """Every num_parts-th stream of a closed loop, from part on, or arrival of an open one."""

    variant: Variant
    load: Load
    part: int
    num_parts: int
    first_number: int  # of the requests of all parts
    seed: int = 0  # of arrivals


class TimedLoop:
    """Plays one share, once.

    The first requests of a closed loop have max_tokens from a part of theirs up to all, evenly: so they end one after
    another, as later ones do. A request that fails ends the loop.
    """

    def __init__(self, client: AsyncPacelineClient, workload: Workload, share: TimedShare) -> None:
        self._client = client
        self._workload = workload
        self._share = share
        self._options = share.variant.options()
        self._numbers = itertools.count(share.first_number + share.part, share.num_parts)
        self._running: dict[int, SentRequest] = {}  # by number, in the order of their start
        self._outcomes: dict[int, Outcome] = {}
        self._tasks: list[asyncio.Task[None]] = []  # kept when they end: an error of our own in one is raised
        self._wanted = 0
        self._is_over = asyncio.Event()

    async def run(self, ready: Callable[[], Awaitable[float]]) -> dict[int, Outcome]:
        """What came of each request, those that were cut off as well.

        ready: awaited once, when the clock may start; returns when it does, on the monotonic clock.
        """
        try:
            await (self._open(ready) if self._share.load.is_open else self._closed(ready))
        finally:
            self._wanted = 0
            self._cut_surplus()
            await asyncio.gather(*self._tasks)
        return self._outcomes

    async def _closed(self, ready: Callable[[], Awaitable[float]]) -> None:
        phases = self._share.load.phases
        first_amount = phases[0][1]
        self._wanted = self._streams(first_amount)
        for i in range(self._wanted):
            self._start((self._share.part + i * self._share.num_parts + 1) / first_amount)
        for sent in list(self._running.values()):
            await sent.has_token.wait()
        until_s = await ready()
        for seconds, amount in phases:
            until_s += seconds
            self._wanted = self._streams(amount)
            self._cut_surplus()
            self._refill()
            if await self._ends_by(until_s):
                return

    async def _open(self, ready: Callable[[], Awaitable[float]]) -> None:
        began_s, share = await ready(), self._share
        for index, at_s in enumerate(share.load.arrivals(share.seed)):
            if index % share.num_parts != share.part:
                continue
            if await self._ends_by(began_s + at_s):
                return
            self._start()
        await self._ends_by(began_s + share.load.seconds)

    async def _ends_by(self, at_s: float) -> bool:
        """Waits until then; True at once where a request has failed."""
        try:
            await asyncio.wait_for(self._is_over.wait(), max(0.0, at_s - time.monotonic()))
        except TimeoutError:
            return False
        return True

    def _streams(self, amount: float) -> int:
        return len(range(self._share.part, round(amount), self._share.num_parts))

    def _refill(self) -> None:
        while len(self._running) < self._wanted:
            self._start()

    def _cut_surplus(self) -> None:
        """The newest go."""
        for number in list(self._running)[self._wanted :]:
            self._running.pop(number).cut()

    def _start(self, length: float = 1.0) -> None:
        number = next(self._numbers)
        sampling = shortened(self._workload.sampling(number), length)
        sent = SentRequest(self._client, self._workload.messages(number), sampling, self._options)
        self._running[number] = sent
        self._tasks.append(asyncio.create_task(self._follow(number, sent)))

    async def _follow(self, number: int, sent: SentRequest) -> None:
        outcome = self._outcomes[number] = await sent.outcome()
        self._running.pop(number, None)
        if outcome.error:
            self._wanted = 0
            self._is_over.set()
        elif not self._share.load.is_open:
            self._refill()


def shortened(sampling: Sampling, length: float) -> Sampling:
    """With max_tokens at this share, rounded up; unset it stays."""
    if sampling.max_tokens is None:
        return sampling
    return dataclasses.replace(sampling, max_tokens=math.ceil(sampling.max_tokens * length))
