"""A connection of a process with itself, for rehearsals: what travels by it takes the kernel's way of all rounds."""

from __future__ import annotations

import logging
import select
import socket
from collections.abc import Callable
from typing import Any, TypeVar

from paceline.errors import UnavailableError
from paceline.frames import FrameSocket

LONGEST_WAY_S = 0.001  # what takes longer is there the next time
_MOST_SILENT = 10  # rehearsals in a row that nothing came of: one may be late by chance, and is there the next time
_TIMEOUT_S = 1.0

RehearsalT = TypeVar("RehearsalT")

_log = logging.getLogger(__name__)


def loopback_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of one TCP connection. Raises UnavailableError where the system gives none."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as door:
            door.settimeout(_TIMEOUT_S)
            ours = socket.create_connection(door.getsockname(), _TIMEOUT_S)
            try:
                return ours, _accept(door, ours.getsockname())
            except OSError:
                ours.close()
                raise
    except OSError as error:
        raise UnavailableError(f"no connection over loopback: {error.strerror or error}") from error


def made_if_connected(make: Callable[[], RehearsalT]) -> RehearsalT | None:
    """What make gives; None, and a line in the log, where it raises UnavailableError: a service does without."""
    try:
        return make()
    except UnavailableError as error:
        _tell(error)
        return None


class FarEnd:
    """The end of a rehearsed lane that is the peer's in a round. Owns the socket. Waits LONGEST_WAY_S at most: where a
    loopback goes down, a step may come later by about twice that, in each of the last _MOST_SILENT rehearsals."""

    def __init__(self, sock: socket.socket) -> None:
        self._frames = FrameSocket(sock)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._num_due = 0
        self._num_silent = 0  # rehearsals in a row

    def fileno(self) -> int:
        """-1 once it is closed."""
        return self._frames.fileno()

    def send(self, payload: bytes) -> None:
        """Begins a rehearsal. Raises UnavailableError where the connection broke, or takes nothing any more."""
        if self._frames.send_now(payload):
            raise UnavailableError("a connection over loopback takes nothing any more")

    def take_in(self, num_sent: int) -> None:
        """Ends a rehearsal: takes what has come. num_sent: frames that were sent to it since the last call.

        Raises UnavailableError where the connection broke, or nothing comes by it any more.
        """
        self._num_due += num_sent
        num_came = self._read()
        if num_came < self._num_due and self._poll.poll(1e3 * LONGEST_WAY_S):
            num_came += self._read()
        self._num_due -= num_came
        self._num_silent = 0 if num_came else self._num_silent + 1
        if self._num_silent == _MOST_SILENT:
            raise UnavailableError(f"nothing came of {_MOST_SILENT} rounds over loopback")

    def close(self) -> None:
        self._frames.close()

    def _read(self) -> int:
        return sum(1 for _ in self._frames.receive_now())


class WhileConnected:
    """Calls a rehearsal, until that raises UnavailableError; then does nothing, and a line in the log says so."""

    def __init__(self, rehearse: Callable[[], object]) -> None:
        self._rehearse: Callable[[], object] | None = rehearse

    def __call__(self) -> None:
        if self._rehearse is None:
            return
        try:
            self._rehearse()
        except UnavailableError as error:
            self._rehearse = None
            _tell(error)


def _accept(door: socket.socket, wanted: Any) -> socket.socket:
    """wanted: the other end's address."""
    theirs, address = door.accept()
    while address != wanted:  # of another process
        theirs.close()
        theirs, address = door.accept()
    return theirs


def _tell(error: UnavailableError) -> None:
    _log.warning("rounds are not rehearsed, and take longer after a pause: %s", error)
