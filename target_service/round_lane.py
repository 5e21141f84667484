"""RoundLanes: the drafts whose rounds travel beside their stream, straight from the engine's thread and to it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paceline.address import host_of
from paceline.errors import PacelineError, UnavailableError
from paceline.frames import frame, read_frame
from paceline.lane import Lane
from paceline.mailbox import Source
from paceline.rpc_bytes import LaneBytes
from target_service.draft_codec import LaneOffer, RoundReader
from target_service.draft_orders import DraftOrders
from target_service.events import Event
from target_service.order_codec import encode_frame

CONNECT_TIMEOUT_S = 1.0  # for all of it; the draft is not used before


class RoundLanes:
    """The open lanes by the drafts' addresses. ``send`` is the engine thread's, all else the event loop's."""

    def __init__(self, watch: Callable[[Source], None]) -> None:
        """watch: of the engine thread's mailbox."""
        self.watch = watch
        self._lanes: dict[str, RoundLane] = {}

    def add(self, address: str, lane: RoundLane) -> None:
        self._lanes[address] = lane

    def remove(self, address: str) -> None:
        self._lanes.pop(address, None)

    def send(self, orders: dict[str, DraftOrders]) -> dict[str, DraftOrders]:
        """Sends what lanes carry; returns what is left for the links, which owns its features. Never waits."""
        left: dict[str, DraftOrders] = {}
        for address, whole in orders.items():
            lane = self._lanes.get(address)
            if lane is None or lane.epoch != whole.epoch:
                whole.own()
                left[address] = whole
                continue
            if whole.opens or whole.releases or whole.asks is not None:
                lane.send(whole)
            if whole.syncs or whole.reset:
                left[address] = DraftOrders(whole.epoch, syncs=whole.syncs, reset=whole.reset)
        return left


@dataclass(frozen=True, slots=True)
class LaneEnds:
    """Where a lane's messages go and come from."""

    reader: RoundReader
    put: Callable[[Event], None]
    watch: Callable[[Source], None]
    incarnation: int  # of this target
    count: LaneBytes


class RoundLane:
    """A lane's user, see paceline.lane, from its making to ``close``. Made on the event loop."""

    def __init__(self, sock: socket.socket, ends: LaneEnds) -> None:
        """sock: from ``knock``."""
        self.epoch = ends.reader.at.epoch
        self._ends = ends
        self._event_loop = asyncio.get_running_loop()
        self._loss: asyncio.Future[Exception] = self._event_loop.create_future()
        self._lane: Lane[list[Event], list[DraftOrders]]
        self._lane = Lane(sock, self, ends.count, name=f"lane to {ends.reader.at.draft}")

    def send(self, orders: DraftOrders) -> None:
        """Something for Speculate. Engine thread only."""
        self._lane.send([orders])

    def start(self) -> None:
        """Is read from now on."""
        self._lane.start(self._ends.watch)

    async def run(self) -> None:
        """``start``. Raises what ended the lane: UnavailableError, or WireError for what the draft sent."""
        self.start()
        raise await asyncio.shield(self._loss)

    def close(self) -> None:
        self._lane.close()

    def decode(self, payload: bytes) -> list[Event]:
        return self._ends.reader.parse(payload)

    def deliver(self, event: list[Event]) -> None:
        for part in event:
            self._ends.put(part)

    def encode(self, item: list[DraftOrders]) -> list[bytes | memoryview]:
        return encode_frame(item, self._ends.incarnation, self._ends.reader.wire)

    def merge(self, waiting: list[DraftOrders] | None, item: list[DraftOrders]) -> list[DraftOrders]:
        for orders in item:
            orders.own()
        if waiting is None:
            return item
        waiting += item
        return waiting

    def ended(self, error: Exception) -> None:
        with contextlib.suppress(RuntimeError):  # the service ends, and its event loop is closed
            self._event_loop.call_soon_threadsafe(self._on_end, error)

    def _on_end(self, error: Exception) -> None:
        if not self._loss.done():
            self._loss.set_result(error)


async def knock(address: str, offer: LaneOffer) -> socket.socket:
    """A connection that the draft at the address takes for the lane that it offered.

    Raises UnavailableError, saying why, within CONNECT_TIMEOUT_S.
    """
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            sock = await _connected(host_of(address), offer.port)
            try:
                await asyncio.get_running_loop().sock_sendall(sock, frame(offer.token))
                await read_frame(sock, 0)
            except BaseException:
                sock.close()
                raise
    except TimeoutError:
        raise UnavailableError(f"port {offer.port} did not answer within {CONNECT_TIMEOUT_S:g} s") from None
    except (OSError, PacelineError) as error:
        raise UnavailableError(f"port {offer.port}: {error}") from error
    return sock


async def _connected(host: str, port: int) -> socket.socket:
    """To the first of the host's addresses that takes it. Raises OSError, the last one's."""
    loop = asyncio.get_running_loop()
    refusal = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        try:
            return await _connected_to(address, socket.socket(family, kind, protocol))
        except OSError as error:
            refusal = error
    raise refusal


async def _connected_to(address: Any, sock: socket.socket) -> socket.socket:
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock
