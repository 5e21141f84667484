"""Waiting times between attempts to reach a peer."""

from __future__ import annotations

import random

FIRST_S = 0.1
LAST_S = 1.0  # a peer that comes back is seen within this; an attempt costs both sides a refused connection


class Backoff:
    """Doubles from FIRST_S to LAST_S; each wait is between half of that and all of it, so that routers spread."""

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator
        self._next_s = FIRST_S

    def reset(self) -> None:
        self._next_s = FIRST_S

    def next_s(self) -> float:
        delay, self._next_s = self._next_s, min(LAST_S, 2 * self._next_s)
        return delay * self._generator.uniform(0.5, 1)
