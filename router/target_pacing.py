"""Step times of every target, and the bounds of their steps where the streams have a time per token to keep."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Set
from dataclasses import dataclass, field

from router.peer import TargetLoad
from router.prefill_pacing import PrefillPacing
from router.rates import StepTimes
from router.target_link import TargetLink


@dataclass(slots=True)
class _Watch:
    """What one stream of a target has told."""

    pacing: PrefillPacing
    times: StepTimes = field(default_factory=StepTimes)
    load: TargetLoad | None = None  # worked in last
    new_tokens: int = 0  # since then


class TargetPacing:
    """Learns from each step's report. target_tpot_ms 0: no target is bounded."""

    def __init__(self, target_tpot_ms: float, *, clock: Callable[[], float]) -> None:
        self._target_tpot_ms = target_tpot_ms
        self._clock = clock
        self._watches: dict[str, _Watch] = {}

    def forget(self, link: TargetLink) -> None:
        """The stream is over: what was learnt and sent is void."""
        self._watches.pop(link.address, None)

    def retain(self, addresses: Set[str]) -> None:
        """Targets that are none of these have left for good."""
        for address in self._watches.keys() - addresses:
            del self._watches[address]

    def take_step(self, link: TargetLink, *, new_tokens: int) -> None:
        """Works in a message of the link: its load, if it brought one; sends other bounds where it asks for them."""
        watch = self._watches.get(link.address)
        if watch is None:
            watch = self._watches[link.address] = _Watch(PrefillPacing(self._target_tpot_ms))
        watch.new_tokens += new_tokens
        if link.load is watch.load:
            return
        now = self._clock()
        num_streams = min(link.num_flights, link.load.decoding_requests)
        watch.times.observe(link.load, new_tokens=watch.new_tokens, num_streams=num_streams, now=now)
        watch.load, watch.new_tokens = link.load, 0
        if self._target_tpot_ms and (bounds := watch.pacing.revise(link.load, watch.times, now)) is not None:
            link.set_batch_policy(**dataclasses.asdict(bounds))

    def service_s(self, prompt_len: int, num_tokens: float) -> float | None:
        """Seconds that a request would take on the fastest target; None while none is known."""
        now = self._clock()
        known = [watch.times.service_s(prompt_len, num_tokens, now) for watch in self._watches.values()]
        return min((seconds for seconds in known if seconds is not None), default=None)
