"""LaneKeeper: whether the connections of one link get a lane, and what becomes of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from paceline.errors import UnavailableError
from target_service.draft_codec import LaneOffer, RoundReader
from target_service.link_home import LinkHome
from target_service.round_lane import LaneEnds, RoundLane, knock

LANE_PAUSE_S = 60.0  # before a lane is used again with a draft that lost one and lived on, or had none to be reached

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _BrokenLane:
    incarnation: int  # of the draft
    until_s: float


class LaneKeeper:
    """Event loop only."""

    def __init__(self, address: str, incarnation: int, home: LinkHome) -> None:
        """incarnation: this target's."""
        self._address = address
        self._incarnation = incarnation
        self._home = home
        self._clock = asyncio.get_running_loop().time
        self._broken: _BrokenLane | None = None

    @contextlib.asynccontextmanager
    async def open(
        self, offer: LaneOffer | None, reader: RoundReader
    ) -> AsyncIterator[list[Coroutine[Any, Any, None]]]:
        """The lane that the draft offers, if it does and can be reached: the work that fails with it.

        Where it offers none the list is empty; where it cannot be had now, the rounds stay on the stream until the work
        has it. What is under way by the stream then may be overtaken: a session's asks are not, for it has one at a
        time, and one that comes before its open is answered as unknown.
        """
        if offer is None:
            yield []
            return
        sock = await self._knock(offer, reader)
        if sock is None:
            yield [self._keep_knocking(offer, reader)]
            return
        with self._used(sock, reader) as lane:
            yield [self._run(lane, reader.incarnation)]

    @contextlib.contextmanager
    def _used(self, sock: socket.socket, reader: RoundReader) -> Iterator[RoundLane]:
        home = self._home
        ends = LaneEnds(reader, home.put, home.lanes.watch, self._incarnation, home.plumbing.lane_bytes)
        lane = RoundLane(sock, ends)
        home.lanes.add(self._address, lane)
        try:
            yield lane
        finally:
            home.lanes.remove(self._address)
            lane.close()

    async def _keep_knocking(self, offer: LaneOffer, reader: RoundReader) -> None:
        sock = None
        while sock is None:
            await asyncio.sleep(LANE_PAUSE_S)
            sock = await self._knock(offer, reader)
        _log.info("draft %s: rounds travel by its lane from now on", self._address)
        with self._used(sock, reader) as lane:
            await self._run(lane, reader.incarnation)

    async def _knock(self, offer: LaneOffer, reader: RoundReader) -> socket.socket | None:
        broken = self._broken
        if broken is not None and broken.incarnation == reader.incarnation and self._clock() < broken.until_s:
            _log.info("draft %s: rounds travel by gRPC, for its last lane broke", self._address)
            return None
        try:
            return await knock(self._address, offer)
        except UnavailableError as error:
            _log.info("draft %s: rounds travel by gRPC, for its lane cannot be had: %s", self._address, error)
            return None

    async def _run(self, lane: RoundLane, incarnation: int) -> None:
        """Where the draft's process lives on, it was the lane alone that broke: the next might, too."""
        try:
            await lane.run()
        except UnavailableError:
            self._broken = _BrokenLane(incarnation, self._clock() + LANE_PAUSE_S)
            raise
