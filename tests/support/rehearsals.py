"""What rehearsals of both services are held to."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import pytest

from paceline.frames import FrameSocket
from paceline.loopback import WhileConnected, loopback_pair

_BLOCKED_S = 5.0  # much longer than a busy machine takes for a rehearsal, and much shorter than keepalive


class Rehearses(Protocol):
    def run(self) -> None: ...

    def close(self) -> None: ...


class CountsLaunches(Protocol):
    launched: int


def assert_ends_with_its_connection(
    rehearsal: Rehearses, end: FrameSocket, counts: CountsLaunches, caplog: pytest.LogCaptureFixture
) -> None:
    """end: of the connection, the peer's. Closes the rehearsal."""
    rehearse = WhileConnected(rehearsal.run)
    rehearse()
    end.shut_down()
    counts.launched = 0
    for _ in range(4):
        rehearse()
    assert not counts.launched
    assert caplog.text.count("rounds are not rehearsed") == 1
    rehearsal.close()


class Cable:
    """Two sockets, and a thread that carries bytes between them, until one way, or the other, is cut: then both still
    stand, and nothing comes."""

    def __init__(self) -> None:
        self._near, self.ours = loopback_pair()
        self._far, self.theirs = loopback_pair()
        self._there = {self._near: self._far, self._far: self._near}
        self._woken, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._carry)
        self._thread.start()

    def cut(self, *, from_ours: bool) -> None:
        """What is under way may still arrive."""
        del self._there[self._near if from_ours else self._far]
        self._waker.send(b"\0")

    def close(self) -> None:
        """The ends are their users'."""
        self._there.clear()
        self._waker.send(b"\0")
        self._thread.join()
        for sock in (self._near, self._far, self._woken, self._waker):
            sock.close()

    def _carry(self) -> None:
        while self._there:
            ready, _, _ = select.select([self._woken, *self._there], (), ())
            for sock in ready:
                data = b""
                with contextlib.suppress(OSError):  # its user has closed the end
                    data = sock.recv(65536)
                    there = self._there.get(sock)
                    if there is not None and data:
                        there.sendall(data)
                        continue
                if sock is not self._woken:
                    self._there.pop(sock, None)


@contextmanager
def cable() -> Iterator[Cable]:
    made = Cable()
    try:
        yield made
    finally:
        made.close()


def assert_ends_where_nothing_comes(
    make: Callable[[], Rehearses], link: Cable, caplog: pytest.LogCaptureFixture, *, from_ours: bool
) -> None:
    """make: a rehearsal over the cable. from_ours: which way is cut, the lane's or its peer's."""
    rehearsal = make()
    rehearse = WhileConnected(rehearsal.run)
    for _ in range(3):
        rehearse()
    assert "rounds are not rehearsed" not in caplog.text
    link.cut(from_ours=from_ours)
    for _ in range(30):
        began_s = time.monotonic()
        rehearse()
        assert time.monotonic() - began_s < _BLOCKED_S
    assert caplog.text.count("rounds are not rehearsed") == 1
    assert "nothing came of 10 rounds over loopback" in caplog.text
    rehearsal.close()
