"""FrameSocket: messages on a TCP connection, each behind its length. For threads, not for an event loop."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator
from typing import cast

from paceline.errors import UnavailableError, WireError
from paceline.rpc import MAX_MESSAGE_BYTES

_LENGTH = struct.Struct(">I")
_NOTHING = memoryview(b"")
_MAX_PARTS = 1000  # of one call of the kernel, which takes 1024
_BUFFER_BYTES = 64 * 1024  # most rounds come with one call of the kernel, length and all
_KEEPALIVE_S = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5}  # as gRPC's: what sits between must not forget an idle lane


def frame(payload: bytes) -> bytes:
    """The payload as it travels."""
    return _LENGTH.pack(len(payload)) + payload


async def read_frame(sock: socket.socket, max_bytes: int) -> bytes:
    """One frame of at most max_bytes, on the event loop, and not a byte more. sock: one that does not block.

    Raises WireError for a longer one, UnavailableError at the connection's end.
    """
    (size,) = _LENGTH.unpack(await _read_exactly(sock, _LENGTH.size))
    _check_size(size, max_bytes)
    return await _read_exactly(sock, size)


class FrameSocket:
    """Owns a connected socket. One thread receives and one at a time sends; ``shut_down`` lets go of both."""

    def __init__(self, sock: socket.socket) -> None:
        """Raises UnavailableError, and closes the socket, where the connection is over already."""
        try:
            _set_up(sock)
        except OSError as error:
            sock.close()
            raise _over(error) from error
        self._sock = sock
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._stop = 0  # of what has come and was not given out; 0 where that is nothing
        self._long = bytearray()  # a payload that the buffer does not hold, and how much of it has come
        self._long_held = 0

    def fileno(self) -> int:
        """-1 once it is closed."""
        return self._sock.fileno()

    def receive(self) -> bytes:
        """The next payload; waits for it. Raises WireError past MAX_MESSAGE_BYTES, UnavailableError at the end."""
        while (payload := self._next()) is None:
            self._read(0)
        return payload

    def receive_now(self) -> Iterator[bytes]:
        """The payloads that are there whole, without waiting for more; none or some. Raises as ``receive`` does.

        One call of the kernel, and more where a long payload goes on: what came after is there the next time.
        """
        while self._read(socket.MSG_DONTWAIT):
            while (payload := self._next()) is not None:
                yield payload
                if not self._stop:
                    return
            if not self._long:
                return

    def send_now(self, *payload: bytes | memoryview) -> memoryview:
        """Sends as much of a frame as the kernel takes at once. Returns the rest, for ``send``; empty: there is none.

        payload: in parts, of bytes; they are free again when this returns. Raises UnavailableError where the connection
        is over.
        """
        if len(payload) > _MAX_PARTS:
            payload = (b"".join(payload),)
        num_bytes = sum(map(len, payload))
        parts = (_LENGTH.pack(num_bytes), *payload)
        try:
            num_taken = self._sock.sendmsg(parts, (), socket.MSG_DONTWAIT)
        except BlockingIOError:
            num_taken = 0
        except OSError as error:
            raise _over(error) from error
        if num_taken == _LENGTH.size + num_bytes:
            return _NOTHING
        return memoryview(b"".join(parts))[num_taken:]

    def send(self, rest: memoryview | bytes) -> None:
        """Waits until the kernel has taken it. Raises UnavailableError where the connection is over."""
        try:
            self._sock.sendall(rest)
        except OSError as error:
            raise _over(error) from error

    def shut_down(self) -> None:
        """Ends the connection, and every call that waits in it. From any thread, as often as one likes."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it had ended

    def close(self) -> None:
        """To be called when no thread is in another method any more, nor will be."""
        self._sock.close()

    def _next(self) -> bytes | None:
        """The next payload, if all of it was read."""
        if not self._long:
            held = self._stop - self._start
            if held < _LENGTH.size:
                return None
            (size,) = _LENGTH.unpack_from(self._buffer, self._start)
            _check_size(size, MAX_MESSAGE_BYTES)
            start = self._start + _LENGTH.size
            stop = start + size
            if stop <= self._stop:
                payload = bytes(self._view[start:stop])
                self._start = stop
                if stop == self._stop:
                    self._start = self._stop = 0
                return payload
            if _LENGTH.size + size <= _BUFFER_BYTES:
                return None
            self._long = bytearray(size)
            self._long_held = self._stop - start
            self._long[: self._long_held] = self._view[start : self._stop]
            self._start = self._stop = 0
        if self._long_held < len(self._long):
            return None
        whole, self._long = self._long, bytearray()
        return cast("bytes", whole)  # protobuf parses it all the same, and a copy of megabytes costs a round's time

    def _read(self, flags: int) -> bool:
        """One call of the kernel. False: nothing is there."""
        into = self._view
        if self._long:
            into = memoryview(self._long)[self._long_held :]
        elif self._stop:
            held = self._stop - self._start
            if self._start:
                self._view[:held] = bytes(self._view[self._start : self._stop])
                self._start, self._stop = 0, held
            into = self._view[held:]
        try:
            num_bytes = self._sock.recv_into(into, 0, flags)
        except BlockingIOError:
            return False
        except OSError as error:
            raise _over(error) from error
        if not num_bytes:
            raise UnavailableError("the lane was closed at the other end")
        if self._long:
            self._long_held += num_bytes
        else:
            self._stop += num_bytes
        return True


def _set_up(sock: socket.socket) -> None:
    sock.setblocking(True)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE_S.items():
        if hasattr(socket, name):  # not by every system
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def _read_exactly(sock: socket.socket, num_bytes: int) -> bytes:
    held = b""
    while len(held) < num_bytes:
        try:
            part = await asyncio.get_running_loop().sock_recv(sock, num_bytes - len(held))
        except OSError as error:
            raise _over(error) from error
        if not part:
            raise UnavailableError("the lane was closed at the other end")
        held += part
    return held


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise WireError(f"a frame of {size} bytes on a lane; at most {max_bytes} are taken")


def _over(error: OSError) -> UnavailableError:
    return UnavailableError(f"the lane broke: {error.strerror or error}")
