"""Looks at the rounds of running services while something else keeps them busy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from client.rounds import RoundSource
from paceline.errors import PacelineError

_INTERVAL_S = 0.05  # far between rounds: a look costs the service a good part of a millisecond


@dataclass(frozen=True, slots=True)
class SampledRound:
    """One step of one service."""

    service: str
    timings_ms: Mapping[str, float]
    most_nodes: int  # of one request's tree; 0 where no request was verified or proposed for


@dataclass(slots=True)
class RoundSampler:
    """Samples from the start of its context to the end, on a thread of its own; each step at most once."""

    sources: Sequence[RoundSource]
    rounds: list[SampledRound] = field(default_factory=list)
    error: PacelineError | None = None  # what ended it early
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="round sampler", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._thread is not None
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._sample())
        except PacelineError as error:
            self.error = error

    async def _sample(self) -> None:
        seen = {source.address: (await source.last()).step for source in self.sources}
        while not self._stop.is_set():
            for source in self.sources:
                view = await source.last()
                if view.step != seen[source.address]:
                    seen[source.address] = view.step
                    nodes = max(view.verify_input.num_tokens_per_req, default=0)
                    self.rounds.append(SampledRound(source.service, dict(view.timings_ms), nodes))
            await asyncio.sleep(_INTERVAL_S)
