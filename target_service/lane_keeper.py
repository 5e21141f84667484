"""LaneKeeper: whether the connections of one link get a lane, and what becomes of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any

from paceline.errors import UnavailableError
from target_service.draft_codec import LaneOffer, RoundReader
from target_service.link_home import LinkHome
from target_service.round_lane import LaneEnds, RoundLane, knock

LANE_PAUSE_S = 60.0  # before a lane is used again with a draft that lost one and lived on

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
        """The lane that the draft offers, if it does and can be reached: the work that reads from it and fails with it.

        Without one the list is empty, and the rounds stay on the stream.
        """
        sock = None if offer is None else await self._knock(offer, reader)
        if sock is None:
            yield []
            return
        home = self._home
        ends = LaneEnds(reader, home.put, home.lanes.watch, self._incarnation, home.plumbing.lane_bytes)
        lane = RoundLane(sock, ends)
        home.lanes.add(self._address, lane)
        try:
            yield [self._run(lane, reader.incarnation)]
        finally:
            home.lanes.remove(self._address)
            lane.close()

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
