"""Collects what targets report of their steps while a load runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from bench.side_thread import SideThread
from bench.target_link import StepSample, TargetLink
from paceline.tls import TlsIdentity

_INTERVAL_S = 0.1  # a look costs the target a good part of a millisecond


class StepSampler(SideThread):
    """Some of all steps, each once."""

    def __init__(self, addresses: Sequence[str], tls: TlsIdentity | None) -> None:
        super().__init__("step sampler")
        self._addresses, self._tls = addresses, tls
        self._steps: list[StepSample] = []

    def take(self) -> list[StepSample]:
        """Those since the last call. Raises the PacelineError that ended the sampling early."""
        if self.error is not None:
            raise self.error
        taken, self._steps = self._steps, []
        return taken

    async def look(self) -> None:
        async with AsyncExitStack() as stack:
            links = [await stack.enter_async_context(TargetLink(address, self._tls)) for address in self._addresses]
            last: dict[str, StepSample | None] = {}
            while not self.is_over:
                for link in links:
                    step = await link.last_step()
                    if step is not None and step != last.get(link.address):
                        self._steps.append(step)
                    last[link.address] = step
                await asyncio.sleep(_INTERVAL_S)
