"""Patience: whether a draft's trees come in time often enough to be waited for."""

from __future__ import annotations

_SMOOTHING = 0.2
_LEAST_SHARE = 0.5  # below it a wait costs more than the trees give back: a late one cost the whole deadline
_PROBE_EVERY = 16  # batches of asks left out between two that try again


class Patience:
    """Counts the answers of one draft. Pure.

    Trees that always come past their deadline would make each round wait in full and verify one node. So a draft that
    is late most of the time is asked only now and then, until it has caught up. A wrong tree counts as a late one.
    """

    def __init__(self) -> None:
        self._in_time = 1.0  # share of the trees, exponential average over answers
        self._left_out = 0

    @property
    def is_lost(self) -> bool:
        return self._in_time < _LEAST_SHARE

    def may_ask(self) -> bool:
        """Whether the next batch of asks is worth a wait. Counts the call."""
        if not self.is_lost:
            return True
        self._left_out += 1
        if self._left_out < _PROBE_EVERY:
            return False
        self._left_out = 0
        return True

    def note(self, *, in_time: float) -> None:
        """The share of one answer's trees that were of use: those of a round come together, and are late together."""
        self._in_time += _SMOOTHING * (in_time - self._in_time)
