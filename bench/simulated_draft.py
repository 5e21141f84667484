"""SimDraft: takes all asks that wait into one batch, and answers them together."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence

from bench.simulated_events import Events
from bench.simulated_world import World
from paceline.types import TreeShape


class SimDraft:
    """Growths of one batch run one after the other, as they do in a DeviceDrafter."""

    def __init__(self, world: World, events: Events) -> None:
        self._world = world
        self._events = events
        self._inbox: list[tuple[Sequence[TreeShape], Callable[[], None]]] = []
        self._is_busy = False

    def ask(self, shapes: Sequence[TreeShape], answer: Callable[[], None]) -> None:
        """answer is called when the trees of all shapes are there."""
        self._inbox.append((shapes, answer))
        if not self._is_busy:
            self._start()

    def _start(self) -> None:
        batch, self._inbox = self._inbox, []
        spent_ms = self._world.draft_ms(Counter(shape for shapes, _ in batch for shape in shapes))
        self._is_busy = True
        self._events.after(spent_ms, functools.partial(self._done, batch))

    def _done(self, batch: Sequence[tuple[Sequence[TreeShape], Callable[[], None]]]) -> None:
        self._is_busy = False
        for _, answer in batch:
            answer()
        if self._inbox:
            self._start()
