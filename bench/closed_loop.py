"""The closed loop of one client process: a number of requests in flight, an ended one replaced at once."""

from __future__ import annotations

import asyncio
import time

from bench.outcome import Arrival, Outcome
from bench.tickets import Tickets
from bench.workload import Variant, Workload
from client.aio import AsyncPacelineClient
from paceline.errors import PacelineError


class ClosedLoop:
    """Sends the workload's requests on client's channel."""

    def __init__(self, client: AsyncPacelineClient, workload: Workload) -> None:
        self._client = client
        self._workload = workload

    async def run(self, variant: Variant, tickets: Tickets, *, num_streams: int) -> dict[int, Outcome]:
        """What came of each ticket that was taken here. A request that fails is counted, not raised."""
        outcomes: dict[int, Outcome] = {}

        async def work() -> None:
            while (number := tickets.take()) is not None:
                outcomes[number] = await self._request(number, variant)

        async with asyncio.TaskGroup() as group:
            for _ in range(num_streams):
                group.create_task(work())
        return outcomes

    async def _request(self, number: int, variant: Variant) -> Outcome:
        messages, sampling = self._workload.messages(number), self._workload.sampling(number)
        arrivals: list[Arrival] = []
        sent_s = time.monotonic()
        try:
            async with self._client.generate(messages, sampling=sampling, options=variant.options()) as answer:
                async for delta in answer:
                    if delta.token_ids:
                        arrivals.append(Arrival(time.monotonic(), len(delta.token_ids)))
                completion = await answer.result()
        except PacelineError as error:
            return Outcome(None, f"{type(error).__name__}: {error}", sent_s, time.monotonic(), tuple(arrivals))
        return Outcome(completion, "", sent_s, time.monotonic(), tuple(arrivals))
