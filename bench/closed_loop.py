"""The closed loop of one client process: a number of requests in flight, an ended one replaced at once."""

from __future__ import annotations

import asyncio

from bench.outcome import Outcome
from bench.sent_request import SentRequest
from bench.tickets import Tickets
from bench.workload import Variant, Workload
from client.aio import AsyncPacelineClient


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
                messages, sampling = self._workload.messages(number), self._workload.sampling(number)
                sent = SentRequest(self._client, messages, sampling, variant.options())
                outcomes[number] = await sent.outcome()

        async with asyncio.TaskGroup() as group:
            for _ in range(num_streams):
                group.create_task(work())
        return outcomes
