"""Tickets: the one queue that the client processes of a run share."""

from __future__ import annotations

import time
from multiprocessing.context import SpawnContext


class Tickets:
    """Hands out first, first + 1, ... to any process, each number once, as many as a run has."""

    def __init__(self, context: SpawnContext) -> None:
        self._next = context.Value("q", 0)
        self._first = 0  # in the process that refills
        self._limit = context.Value("q", 0, lock=False)
        self._exhausted_s = context.Value("d", 0.0, lock=False)

    def refill(self, count: int, *, first: int = 0) -> None:
        """For the next run, while no process takes."""
        self._first = first
        with self._next.get_lock():
            self._next.value, self._limit.value, self._exhausted_s.value = first, first + count, 0.0

    def take(self) -> int | None:
        """None where all are taken."""
        with self._next.get_lock():
            number: int = self._next.value
            if number < self._limit.value:
                self._next.value = number + 1
                return number
            if not self._exhausted_s.value:
                self._exhausted_s.value = time.monotonic()
            return None

    @property
    def num_taken(self) -> int:
        """Of this run; asked by the process that refilled."""
        return int(self._next.value) - self._first

    @property
    def exhausted_s(self) -> float:
        """When a process first asked in vain, on the monotonic clock; 0 before."""
        return float(self._exhausted_s.value)
