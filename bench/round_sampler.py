"""Looks at the rounds of running services while something else keeps them busy."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.side_thread import SideThread
from client.rounds import RoundSource

_INTERVAL_S = 0.05  # far between rounds: a look costs the service a good part of a millisecond


@dataclass(frozen=True, slots=True)
class SampledRound:
    """One step of one service."""

    service: str
    timings_ms: Mapping[str, float]
    most_nodes: int  # of one request's tree; 0 where no request was verified or proposed for
    requests: int = 1  # that were


class RoundSampler(SideThread):
    """Each step at most once."""

    def __init__(self, sources: Sequence[RoundSource]) -> None:
        super().__init__("round sampler")
        self.sources = sources
        self.rounds: list[SampledRound] = []

    async def look(self) -> None:
        seen = {source.address: (await source.last()).step for source in self.sources}
        while not self.is_over:
            for source in self.sources:
                view = await source.last()
                if view.step != seen[source.address]:
                    seen[source.address] = view.step
                    nodes = view.verify_input.num_tokens_per_req
                    sampled = SampledRound(source.service, dict(view.timings_ms), max(nodes, default=0), len(nodes))
                    self.rounds.append(sampled)
            await asyncio.sleep(_INTERVAL_S)
