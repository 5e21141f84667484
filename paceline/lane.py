"""Lane: one end of a direct connection for rounds, from one engine's thread to another's with none on the way."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from paceline.errors import CapacityError, UnavailableError
from paceline.frames import FrameSocket
from paceline.mailbox import Source
from paceline.rpc_bytes import LaneBytes

EventT = TypeVar("EventT")
ItemT = TypeVar("ItemT")


class LaneUser(Protocol[EventT, ItemT]):
    """What a lane carries: frames in become events, items become frames out."""

    def decode(self, payload: bytes) -> EventT:
        """On the mailbox's thread. What it raises ends the lane."""

    def deliver(self, event: EventT) -> None:
        """Likewise: puts it into the mailbox. Never called once the lane's ``close`` has returned."""

    def encode(self, item: ItemT) -> Sequence[bytes | memoryview]:
        """A payload, in parts. On the thread that sends, or on the lane's writing thread."""

    def merge(self, waiting: ItemT | None, item: ItemT) -> ItemT:
        """What is to be sent of both, when the kernel takes something again; waiting may be changed and returned.

        Raises CapacityError where too much waits: that ends the lane.
        """

    def ended(self, error: Exception) -> None:
        """On the mailbox's thread, once, with the first cause; not where ``close`` came before."""


class Lane(Generic[EventT, ItemT]):
    """Takes over a connected socket, which a mailbox's thread reads, and sends for one thread, which may be the same.

    A sender never waits: what the kernel has no room for leaves by a writing thread, which is begun when first needed,
    and what is to be sent meanwhile is merged into one message.
    """

    def __init__(self, sock: socket.socket, user: LaneUser[EventT, ItemT], count: LaneBytes, *, name: str) -> None:
        """name: of the writing thread."""
        self._frames = FrameSocket(sock)
        self._user = user
        self._count = count
        self._name = name
        self._lock = threading.Lock()  # of what follows; held for nothing that waits
        self._is_watched = False  # the socket is the mailbox's thread's to close
        self._is_closed = False
        self._failure: Exception | None = None  # the first
        self._is_behind = False  # the writing thread has something to send
        self._waiting: ItemT | None = None  # for that thread
        self._writer: threading.Thread | None = None
        self._unsent: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()

    def start(self, watch: Callable[[Source], None]) -> None:
        """Is read from now on, unless it was closed. watch: the mailbox's."""
        with self._lock:
            if self._is_closed:
                return
            self._is_watched = True
        watch(self)

    def fileno(self) -> int:
        return self._frames.fileno()

    def take_in(self) -> bool:
        """As paceline.mailbox.Source says."""
        try:
            for payload in self._frames.receive_now():
                self._count.note_received(len(payload))
                event = self._user.decode(payload)
                with self._lock:
                    if self._is_closed:
                        break
                    self._user.deliver(event)
            else:
                return True
        except Exception as error:  # noqa: BLE001 - whatever it is, the user is to hear of it
            with self._lock:
                self._fail(error)
        self._end()
        return False

    def forsake(self) -> None:
        """Likewise."""
        with self._lock:
            self._is_closed = True
        self._end()

    def send(self, item: ItemT) -> None:
        """One thread's. Never waits. What comes after the lane's end is dropped: its user is told of that."""
        with self._lock:
            if self._is_closed or self._failure is not None:
                return
            if self._is_behind:
                self._merge(item)
                return
        payload = self._user.encode(item)
        with self._lock:
            if self._is_closed:
                return
            try:
                rest = self._frames.send_now(*payload)
            except UnavailableError as error:
                self._fail(error)
                return
            if rest:
                self._hand_over(rest)
        self._count.note_sent(sum(map(len, payload)))

    def close(self) -> None:
        """Ends the lane; its thread and its socket go by themselves. From any thread, as often as one likes."""
        with self._lock:
            self._is_closed = True
            if not self._is_watched:
                self._frames.close()
                return
        self._frames.shut_down()

    def _end(self) -> None:
        with self._lock:
            is_news, self._is_closed = not self._is_closed, True
            if is_news:
                assert self._failure is not None
                self._user.ended(self._failure)
        self._frames.shut_down()
        if self._writer is None:
            self._frames.close()
        else:
            self._unsent.put(None)

    def _write(self) -> None:
        try:
            while (rest := self._unsent.get()) is not None:
                self._frames.send(rest)
                while (item := self._take_waiting()) is not None:
                    payload = self._user.encode(item)
                    self._frames.send(self._frames.send_now(*payload))
                    self._count.note_sent(sum(map(len, payload)))
        except Exception as error:  # noqa: BLE001 - likewise
            with self._lock:
                self._fail(error)
            while self._unsent.get() is not None:
                pass
        self._frames.close()

    def _merge(self, item: ItemT) -> None:
        """Needs the lock: the item is left to the writing thread, with what waited before."""
        try:
            self._waiting = self._user.merge(self._waiting, item)
        except CapacityError as error:
            self._fail(error)

    def _hand_over(self, rest: memoryview) -> None:
        """Needs the lock: so no writing thread begins once ``_end`` looks for it."""
        self._is_behind = True
        self._unsent.put(rest)
        if self._writer is None:
            self._writer = threading.Thread(target=self._write, name=f"{self._name} writer", daemon=True)
            self._writer.start()

    def _take_waiting(self) -> ItemT | None:
        with self._lock:
            item, self._waiting = self._waiting, None
            self._is_behind = item is not None
            return item

    def _fail(self, error: Exception) -> None:
        """Needs the lock. The mailbox's thread comes to the end, and tells of it."""
        self._failure = self._failure or error
        self._frames.shut_down()
