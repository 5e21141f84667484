"""Readiness: whether a peer takes work, and since when that is so."""

from __future__ import annotations

from collections.abc import Callable


class Readiness:
    """Not ready at first. clock: seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._is_ready = False
        self._since_s = clock()

    @property
    def unchanged_s(self) -> float:
        """Seconds since it changed last."""
        return self._clock() - self._since_s

    def note(self, is_ready: bool) -> None:
        """What holds now; the same again changes nothing."""
        if is_ready != self._is_ready:
            self._is_ready = is_ready
            self._since_s = self._clock()
