"""PlanSender and PlanReceiver: rank 0's plans on their way to ranks on other hosts, through TCP."""

from __future__ import annotations

import hmac
import secrets
import selectors
import socket
import struct
import threading
from collections.abc import Callable

import numpy as np

from paceline.errors import UnavailableError

_LENGTH = struct.Struct("<q")
_TOKEN_BYTES = 16
_WRITE_LIMIT_S = 300.0


class PlanSender:
    """The writer's end. ``listen``, then hand ``invitation`` to the others, then ``accept``."""

    def __init__(self, listener: socket.socket, num_readers: int) -> None:
        self._listener = listener
        self._num_readers = num_readers
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self._readers: list[socket.socket] = []
        self._farewell = False

    @classmethod
    def listen(cls, host: str, num_readers: int) -> PlanSender:
        """On a free port of host, an address of this machine. Raises UnavailableError where it is none."""
        try:
            family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
            return cls(socket.create_server(address[:2], family=family), num_readers)
        except OSError as error:
            raise UnavailableError(
                f"rank 0 cannot listen on {host}: {error}; --dist-init-addr must name this host"
            ) from error

    def invitation(self, host: str) -> str:
        """What a PlanReceiver needs to be let in."""
        return f"{host} {self._listener.getsockname()[1]} {self._token.hex()}"

    def accept(self, *, limit_s: float, on_lost: Callable[[], None]) -> None:
        """Waits for all readers. on_lost: called by a thread of its own once one is gone before the farewell.

        Raises UnavailableError where they do not come within limit_s.
        """
        self._listener.settimeout(limit_s)
        with self._listener:
            while len(self._readers) < self._num_readers:
                try:
                    reader, _ = self._listener.accept()
                    reader.settimeout(limit_s)
                    token = _receive(reader, _TOKEN_BYTES)
                except OSError as error:
                    raise UnavailableError(f"a rank did not fetch its plans within {limit_s:g} s: {error}") from error
                if not hmac.compare_digest(token, self._token):
                    reader.close()
                    continue
                reader.settimeout(_WRITE_LIMIT_S)
                reader.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._readers.append(reader)
        threading.Thread(target=self._watch, args=(on_lost,), name="plan readers", daemon=True).start()

    def write(self, array: np.ndarray) -> None:
        """int64, one dimension; an empty one is the farewell. Raises UnavailableError where a reader is gone."""
        self._farewell = self._farewell or not len(array)
        message = _LENGTH.pack(len(array)) + array.astype(np.int64, copy=False).tobytes()
        for reader in self._readers:
            try:
                reader.sendall(message)
            except OSError as error:
                raise UnavailableError(f"a rank on another host takes no plans: {error}; restart the target") from error

    def _watch(self, on_lost: Callable[[], None]) -> None:
        """Readers send nothing: what can be read is their end."""
        with selectors.DefaultSelector() as selector:
            for reader in self._readers:
                selector.register(reader, selectors.EVENT_READ)
            selector.select()
        if not self._farewell:
            on_lost()


class PlanReceiver:
    """A reader's end."""

    def __init__(self, invitation: str, *, limit_s: float) -> None:
        """Raises UnavailableError where rank 0 does not answer within limit_s."""
        host, port, token = invitation.split()
        try:
            self._socket = socket.create_connection((host, int(port)), limit_s)
            self._socket.sendall(bytes.fromhex(token))
        except OSError as error:
            raise UnavailableError(f"rank 0 does not hand out plans at {host}:{port}: {error}") from error
        self._socket.settimeout(None)

    def read(self) -> np.ndarray:
        """The next array. Waits for it as long as it takes; raises UnavailableError once rank 0 is gone."""
        try:
            (length,) = _LENGTH.unpack(_receive(self._socket, _LENGTH.size))
            return np.frombuffer(_receive(self._socket, 8 * length), np.int64).copy()
        except OSError as error:
            raise UnavailableError(f"rank 0 is gone: {error}") from error


def _receive(source: socket.socket, num_bytes: int) -> bytes:
    """Exactly so many. Raises OSError, at the end of the stream, too."""
    parts: list[bytes] = []
    while num_bytes:
        part = source.recv(num_bytes)
        if not part:
            raise ConnectionResetError("the connection ended")
        parts.append(part)
        num_bytes -= len(part)
    return b"".join(parts)
