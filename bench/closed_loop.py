"""The load generator: a closed loop that keeps a number of requests in flight at a router."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence

from bench.config import PLAIN, BenchConfig
from bench.outcome import Outcome, Run
from client.aio import AsyncPacelineClient
from client.request import GenerateOptions, Message, Sampling, Speculation
from paceline.errors import PacelineError

_WARM_UP_TOKENS = 8


class ClosedLoop:
    """Runs the modes of config over prompts, on the services behind client."""

    def __init__(self, client: AsyncPacelineClient, config: BenchConfig, prompts: Sequence[str]) -> None:
        self._client = client
        self._config = config
        self._prompts = prompts

    async def warm_up(self, mode: str) -> None:
        """One short request that is not measured. Raises a PacelineError where it fails."""
        sampling = Sampling(max_tokens=min(_WARM_UP_TOKENS, self._config.max_tokens), temperature=0.0)
        messages = [Message("user", self._prompts[0])]
        await self._client.generate(messages, sampling=sampling, options=self._options(mode)).result()

    async def run(self, mode: str, *, repeat: int, on_end: Callable[[], object]) -> Run:
        """Sends every prompt once; on_end is called after each. A request that fails is counted, not raised."""
        outcomes: list[Outcome | None] = [None] * len(self._prompts)
        queue = iter(range(len(self._prompts)))  # shared: each worker takes the next when its request has ended

        async def work(indices: Iterator[int]) -> None:
            for index in indices:
                outcomes[index] = await self._request(index, mode)
                on_end()

        started_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._config.concurrency, len(self._prompts))):
                group.create_task(work(queue))
        seconds = time.monotonic() - started_s
        done = tuple(outcome for outcome in outcomes if outcome is not None)
        return Run(mode, repeat, self._config.concurrency, seconds, done)

    async def _request(self, index: int, mode: str) -> Outcome:
        messages = [Message("user", self._prompts[index])]
        sampling = self._config.sampling(index)
        try:
            async with self._client.generate(messages, sampling=sampling, options=self._options(mode)) as answer:
                return Outcome(await answer.result())
        except PacelineError as error:
            return Outcome(None, f"{type(error).__name__}: {error}")

    def _options(self, mode: str) -> GenerateOptions:
        speculation: Speculation = False if mode == PLAIN else self._config.tree_shape()
        return GenerateOptions(speculation=speculation)
