"""Mailbox: events from any thread to the engine thread."""

from __future__ import annotations

import queue

from target_service.events import Event


class Mailbox:
    """First in, first out. ``put`` never blocks; ``take`` is the engine thread's."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def put(self, event: Event) -> None:
        self._queue.put(event)

    def take(self, timeout_s: float) -> list[Event]:
        """All events that are there; waits at most timeout_s for the first."""
        events: list[Event] = []
        try:
            if timeout_s > 0:
                events.append(self._queue.get(timeout=timeout_s))
            while True:
                events.append(self._queue.get_nowait())
        except queue.Empty:
            return events
