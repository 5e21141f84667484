"""SimDraft: takes all asks that wait into one batch, and answers them together."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bench.simulated_events import Events
from bench.simulated_world import World
from paceline.types import TreeShape


@dataclass(frozen=True, slots=True)
class DraftWork:
    """One message of a target."""

    shapes: Sequence[TreeShape]  # of the trees that it asks for
    rows: int  # that come along, more than a round has
    is_beside: Callable[[], bool]  # whether a step of the target runs
    answer: Callable[[], None]  # to be called when the rows are worked in, and the trees are there


class SimDraft:
    """Rows first, then the trees: growths of one batch run one after the other, as they do in a DeviceDrafter."""

    def __init__(self, world: World, events: Events, rng: np.random.Generator) -> None:
        """rng: of how its times spread."""
        self._world = world
        self._events = events
        self._rng = rng
        self._inbox: list[DraftWork] = []
        self._is_busy = False

    def take(self, message: DraftWork) -> None:
        self._inbox.append(message)
        if not self._is_busy:
            self._start()

    def _start(self) -> None:
        batch, self._inbox = self._inbox, []
        world = self._world
        spent_ms = world.draft_ms(Counter(shape for message in batch for shape in message.shapes))
        spent_ms += world.row_ms * sum(message.rows for message in batch)
        if any(message.is_beside() for message in batch):
            spent_ms *= 1.0 + world.slowed
        spent_ms *= float(self._rng.lognormal(-(world.spread**2) / 2, world.spread))
        self._is_busy = True
        self._events.after(spent_ms, functools.partial(self._done, batch))

    def _done(self, batch: Sequence[DraftWork]) -> None:
        self._is_busy = False
        for message in batch:
            message.answer()
        if self._inbox:
            self._start()
