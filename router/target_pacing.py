"""Step times of every target, and the bounds of their steps where the streams have a time per token to keep."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from router.prefill_pacing import PrefillPacing
from router.rates import StepTimes
from router.target_link import TargetLink


class TargetPacing:
    """Learns from each step's report. target_tpot_ms 0: no target is bounded."""

    def __init__(self, target_tpot_ms: float, *, clock: Callable[[], float]) -> None:
        self._target_tpot_ms = target_tpot_ms
        self._clock = clock
        self._times: dict[str, StepTimes] = {}
        self._pacing: dict[str, PrefillPacing] = {}

    def forget(self, link: TargetLink) -> None:
        """A new stream stands, or none will: what was learnt and sent before is void."""
        self._times.pop(link.address, None)
        self._pacing.pop(link.address, None)

    def take_load(self, link: TargetLink, *, new_tokens: int) -> None:
        """Works in the load that the link reported last, and sends other bounds where it asks for them."""
        now = self._clock()
        times = self._times.setdefault(link.address, StepTimes())
        num_streams = min(link.num_flights, link.load.decoding_requests)
        times.observe(link.load, new_tokens=new_tokens, num_streams=num_streams, now=now)
        if self._target_tpot_ms:
            pacing = self._pacing.setdefault(link.address, PrefillPacing(self._target_tpot_ms))
            if (bounds := pacing.revise(link.load, times, now)) is not None:
                link.set_batch_policy(**dataclasses.asdict(bounds))

    def service_s(self, prompt_len: int, num_tokens: float) -> float | None:
        """Seconds that a request would take on the fastest target; None while none is known."""
        now = self._clock()
        known = [times.service_s(prompt_len, num_tokens, now) for times in self._times.values()]
        return min((seconds for seconds in known if seconds is not None), default=None)
