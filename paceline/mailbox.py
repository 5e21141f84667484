"""Mailbox: events for one thread, which reads what comes by sockets itself, so that nobody has to wake it for them."""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from paceline.rehearsal_pace import RehearsalPace

EventT = TypeVar("EventT")
Look = Callable[[list[int], float], list[int]]  # descriptors, seconds: those that have something by then

_SELECTABLE = 1024  # descriptors below: select waits to the microsecond, poll to the millisecond


class Source(Protocol):
    """A socket of events."""

    def fileno(self) -> int:
        """The same until ``take_in`` or ``forsake`` ends it."""
        ...

    def take_in(self) -> bool:
        """Puts what has come into the mailbox, without waiting for more. False: nothing will come any more, and its
        descriptor may be closed."""
        ...

    def forsake(self) -> None:
        """Its mailbox is closed: lets go of the descriptor."""
        ...


class Mailbox(Generic[EventT]):
    """First in, first out. ``put`` and ``watch`` are any thread's and never block; ``take`` and ``close`` one thread's.

    A thread that waits for a descriptor is woken by the kernel alone: a frame that another thread reads and hands on
    costs two threads' wakes, and the interpreter's lock between them.
    """

    def __init__(
        self,
        busy_wait_s: float = 0.0,
        rehearse: Callable[[], object] | None = None,
        *,
        look: Look | None = None,
    ) -> None:
        """busy_wait_s: since a source had something last, in which a wait keeps looking and does not sleep. rehearse:
        called in such a wait, see RehearsalPace, to keep at hand the code that what comes will need. look: in such a
        wait, ``kernels.busy_wait.LOOK``; None looks with neither a pause nor C."""
        self._busy_wait_s = busy_wait_s
        self._rehearse = rehearse
        self._look_busily = look or _look
        self._pace = RehearsalPace()
        self._heard_s = -math.inf  # when a source had something last
        self._events: deque[EventT] = deque()
        self._sources: dict[int, Source] = {}
        self._lock = threading.Lock()  # of what follows
        self._newcomers: list[Source] = []
        self._is_closed = False
        self._is_waiting = False  # the thread has to be woken
        self._ear, self._bell = os.pipe()
        for end in (self._ear, self._bell):
            os.set_blocking(end, False)
        self._descriptors = [self._ear]

    def put(self, event: EventT) -> None:
        self._events.append(event)
        if self._is_waiting:
            self._ring()

    def watch(self, source: Source) -> None:
        """Events are taken from it as well, until it ends or the mailbox is closed."""
        with self._lock:
            if not self._is_closed:
                self._newcomers.append(source)
                self._ring()
                return
        source.forsake()

    def take(self, timeout_s: float | None) -> list[EventT]:
        """All events that are there; waits at most timeout_s for the first, for ever with None."""
        if self._newcomers:
            self._admit()
        if self._sources or timeout_s is None or timeout_s > 0:
            self._look(timeout_s)
        events: list[EventT] = []
        while self._events:
            events.append(self._events.popleft())
        return events

    def gather(self) -> bool:
        """Reads what sources have, for the next ``take``, while the thread waits for something else. False: there are
        none, so that it may as well wait without looking."""
        if self._newcomers:
            self._admit()
        if self._sources:
            self._look(0.0)
        return bool(self._sources)

    def close(self) -> None:
        """Lets go of the sources, of those to come as well. What is put is kept, and never taken."""
        with self._lock:
            self._is_closed = True
        self._admit()
        for source in self._sources.values():
            source.forsake()
        self._sources.clear()

    def __del__(self) -> None:
        os.close(self._ear)
        os.close(self._bell)

    def _look(self, timeout_s: float | None) -> None:
        """Reads the sources that have something; waits for that, or for an event that is put."""
        self._is_waiting = True  # before the look at the events: one that is put after it rings
        ready = self._ready_within(0.0 if self._events or self._newcomers else timeout_s)
        self._is_waiting = False
        for descriptor in ready:
            if descriptor == self._ear:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._ear, 4096)
            else:
                self._heard_s = time.monotonic()
                if not self._sources[descriptor].take_in():
                    del self._sources[descriptor]
                    self._descriptors.remove(descriptor)

    def _ready_within(self, timeout_s: float | None) -> list[int]:
        now_s = time.monotonic()
        end_s = math.inf if timeout_s is None else now_s + timeout_s
        busy_until_s = min(end_s, self._heard_s + self._busy_wait_s)
        pace = self._pace
        pace.begin(now_s)
        while now_s < busy_until_s:
            until_s = busy_until_s if self._rehearse is None else min(busy_until_s, pace.due_s)
            ready = self._look_busily(self._descriptors, until_s - now_s)
            now_s = time.monotonic()
            if ready:
                pace.came_s = now_s
                return ready
            if self._rehearse is not None and now_s >= pace.due_s:
                self._rehearse()
                pace.rehearsed(now_s, now_s := time.monotonic())
        return _ready(self._descriptors, None if timeout_s is None else max(0.0, end_s - now_s))

    def _admit(self) -> None:
        with self._lock:
            newcomers, self._newcomers = self._newcomers, []
        for source in newcomers:
            self._sources[source.fileno()] = source
        self._descriptors = [self._ear, *self._sources]

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it has not heard the last time yet
            os.write(self._bell, b"\0")


def _look(descriptors: list[int], for_s: float) -> list[int]:
    until_s = time.monotonic() + for_s
    while not (ready := _ready(descriptors, 0.0)) and time.monotonic() < until_s:
        pass
    return ready


def _ready(descriptors: list[int], timeout_s: float | None) -> list[int]:
    if max(descriptors) < _SELECTABLE:
        return select.select(descriptors, (), (), timeout_s)[0]
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(None if timeout_s is None else math.ceil(timeout_s * 1e3))]
