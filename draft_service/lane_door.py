"""LaneDoor: where targets connect for the lanes that their streams were offered."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from paceline.errors import UnavailableError, WireError
from paceline.frames import frame, read_frame
from paceline.ports import Listener, listen

TOKEN_BYTES = 32
MAX_STRANGERS = 64  # connections that have not shown a token yet; one more, and the oldest goes
STRANGER_TIMEOUT_S = 3.0
_FULL_PAUSE_S = 0.1  # when the process has no descriptor left

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class LaneOffer:
    """Good for one connection, until it is withdrawn."""

    port: int
    token: bytes
    take: Callable[[socket.socket], None]  # gets the connection that has shown the token, and owns it


class LaneDoor:
    """Event loop only. A connection that shows no offer's token is closed, and does nothing else."""

    def __init__(self, host: str, port: int) -> None:
        """port 0: a free one. Raises ConfigError where it is taken."""
        self._listener = listen(Listener("--round-port", host, port))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._offers: set[LaneOffer] = set()
        self._strangers: dict[asyncio.Task[bool], None] = {}  # the oldest first
        self._accepting = asyncio.get_running_loop().create_task(self._accept(), name="lane door")

    def offer(self, take: Callable[[socket.socket], None]) -> LaneOffer:
        """A new lane, with a token of its own."""
        offer = LaneOffer(self.port, secrets.token_bytes(TOKEN_BYTES), take)
        self._offers.add(offer)
        return offer

    def withdraw(self, offer: LaneOffer) -> None:
        """Whether or not it was taken."""
        self._offers.discard(offer)

    async def close(self) -> None:
        """Lanes that were taken stay."""
        tasks = [self._accepting, *self._strangers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(self._listener)
            except OSError as error:
                _log.warning("a target's connection for a lane was not accepted: %s", error)
                await asyncio.sleep(_FULL_PAUSE_S)
                continue
            if len(self._strangers) >= MAX_STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                oldest.cancel()
            task = loop.create_task(self._admit(sock))
            self._strangers[task] = None
            task.add_done_callback(partial(self._settle, sock))

    async def _admit(self, sock: socket.socket) -> bool:
        """Whether an offer took the connection."""
        try:
            async with asyncio.timeout(STRANGER_TIMEOUT_S):
                token = await read_frame(sock, TOKEN_BYTES)
            offer = self._offer_of(token)
            if offer is None:
                raise WireError("it showed no token of a stream that is open")
            self._offers.discard(offer)
            sock.send(frame(b""))  # a new connection has room for it
            offer.take(sock)
        except (TimeoutError, UnavailableError, WireError, OSError) as error:
            _log.info("a connection to port %d was closed: %s", self.port, str(error) or "no token came in time")
            return False
        return True

    def _settle(self, sock: socket.socket, task: asyncio.Task[bool]) -> None:
        """Closes what no offer took, once the event loop has let go of it."""
        self._strangers.pop(task, None)
        if task.cancelled() or not task.result():
            sock.close()

    def _offer_of(self, token: bytes) -> LaneOffer | None:
        """Looks at every offer, in a time that tells nothing of their tokens."""
        fitting = [offer for offer in self._offers if hmac.compare_digest(offer.token, token)]
        return fitting[0] if fitting else None
