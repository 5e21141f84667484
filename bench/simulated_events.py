"""Events: what happens when, on a clock of its own."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class Events:
    """Actions in order of time; those of one time in the order in which they were given."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        """Never before now."""
        heapq.heappush(self._heap, (max(time_s, self.now_s), next(self._number), action))

    def after(self, delay_ms: float, action: Callable[[], None]) -> None:
        self.at(self.now_s + delay_ms / 1e3, action)

    def run(self, until_s: float) -> None:
        """All that happens up to then."""
        while self._heap and self._heap[0][0] <= until_s:
            self._happen()
        self.now_s = until_s

    def run_until(self, is_reached: Callable[[], bool]) -> None:
        """What happens up to the first action after which it is so, or to the last there is."""
        while self._heap and not is_reached():
            self._happen()

    def _happen(self) -> None:
        self.now_s, _, action = heapq.heappop(self._heap)
        action()
