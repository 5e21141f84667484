"""SentRequest: one request on its way, which may be cut off."""

from __future__ import annotations

import asyncio
import time

from bench.outcome import Arrival, Outcome
from client.aio import AsyncPacelineClient
from client.request import GenerateOptions, Message, Sampling
from paceline.errors import PacelineError


class SentRequest:
    """Leaves when it is made; ``outcome`` reads it to its end and is awaited once."""

    def __init__(
        self, client: AsyncPacelineClient, messages: list[Message], sampling: Sampling, options: GenerateOptions
    ) -> None:
        self.has_token = asyncio.Event()  # or it has ended without one
        self._arrivals: list[Arrival] = []
        self._is_cut = False
        self._sent_s = time.monotonic()
        self._answer = client.generate(messages, sampling=sampling, options=options)

    async def outcome(self) -> Outcome:
        """A request that fails is described, not raised."""
        completion, error_text = None, ""
        try:
            async with self._answer as answer:
                async for delta in answer:
                    if delta.token_ids:
                        self._arrivals.append(Arrival(time.monotonic(), len(delta.token_ids)))
                        self.has_token.set()
                completion = await answer.result()
        except PacelineError as error:
            error_text = "" if self._is_cut else f"{type(error).__name__}: {error}"
        finally:
            self.has_token.set()
        return Outcome(completion, error_text, self._sent_s, time.monotonic(), tuple(self._arrivals))

    def cut(self) -> None:
        """Aborts it: its outcome has what came so far, and no error."""
        self._is_cut = True
        self._answer.cancel()
