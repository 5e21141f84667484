"""A connection of a process with itself, for rehearsals: what travels by it takes the kernel's way of all rounds."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Any, TypeVar

from paceline.errors import UnavailableError

LONGEST_WAY_S = 0.001  # what takes longer is there the next time
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
