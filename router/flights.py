"""Flights: the requests on one target's streams, by the numbers that messages name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from paceline.stats import SpeculationStats
from paceline.types import SpeculationDecision
from router.live_request import Flight, LiveRequest

if TYPE_CHECKING:
    from router.target_link import TargetLink


class Flights:
    """Sets and clears each request's ``flight``. on_empty: called when the last one has left.

    A number is never given twice, so that what a target says late of a request that left means nobody.
    """

    def __init__(self, on_empty: Callable[[], None]) -> None:
        self._on_empty = on_empty
        self._lives: dict[int, LiveRequest] = {}
        self._next_number = 1

    def __len__(self) -> int:
        return len(self._lives)

    def __iter__(self) -> Iterator[LiveRequest]:
        """Oldest first."""
        return iter(self._lives.values())

    def get(self, number: int) -> LiveRequest | None:
        """None for a request that has left."""
        return self._lives.get(number)

    def add(self, link: TargetLink, live: LiveRequest, decision: SpeculationDecision) -> int:
        """Returns its number."""
        number = self._next_number
        self._next_number += 1
        live.flight = Flight(link, number, decision)
        live.attempt_begins()
        self._lives[number] = live
        return number

    def remove(self, live: LiveRequest, *, stats: SpeculationStats | None = None) -> int:
        """Returns the number that it had. stats: what its target counted; None: it did not say."""
        assert live.flight is not None
        number = live.flight.number
        del self._lives[number]
        live.flight = None
        live.attempt_ends(stats)
        if not self._lives:
            self._on_empty()
        return number

    def clear(self) -> list[LiveRequest]:
        """Removes all; oldest first."""
        lives = list(self._lives.values())
        for live in lives:
            self.remove(live)
        return lives
