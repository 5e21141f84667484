"""TreeWait: whether what is due beside trees on their way does better to wait for them."""

from __future__ import annotations

from target_service.deadline import StepTimes

_SMOOTHING = 0.1


class TreeWait:
    """Waits for trees alone, averaged. Below the time of a plain step they are short.

    A step of prompts and undrafted requests alone makes the trees that come meanwhile wait for its end. Where they come
    sooner, all are served better by one step that has both. Before any wait was seen it counts as short.
    """

    def __init__(self, times: StepTimes) -> None:
        self._times = times
        self._wait_ms = 0.0

    @property
    def is_short(self) -> bool:
        return self._wait_ms < self._times.expect(1)

    def observe(self, waited_s: float) -> None:
        """One wait that ended with a step."""
        self._wait_ms += _SMOOTHING * (1e3 * waited_s - self._wait_ms)
