"""SimTreeWait: whether prompts and plain requests wait for trees, by the target's rule, where the router is silent."""

from __future__ import annotations

from bench.simulated_asker import SimAsker

_SMOOTHING = 0.1


class SimTreeWait:
    """They do where waits are shorter than a plain step."""

    def __init__(self, asker: SimAsker) -> None:
        self._asker = asker
        self._wait_ms = 0.0

    @property
    def is_short(self) -> bool:
        return self._wait_ms < self._asker.plain_ms(1)

    def observe(self, wait_ms: float) -> None:
        """Before a step with trees."""
        self._wait_ms += _SMOOTHING * (wait_ms - self._wait_ms)
