"""A round lane that is behind: what waits for it must not change under its hands."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest

from paceline.frames import FrameSocket
from paceline.rpc_bytes import LaneBytes
from paceline.types import TreeShape
from paceline.v1 import draft_pb2
from target_service.asks import Asks
from target_service.draft_codec import RoundReader
from target_service.draft_orders import DraftOrders
from target_service.events import LinkEpoch
from target_service.round_lane import LaneEnds, RoundLane

MORE_THAN_A_SOCKET_HOLDS = 16 * 1024 * 1024


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, FrameSocket]]:
    """Of one connection; the second takes little ahead of what it reads."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        ours = socket.create_connection(listener.getsockname())
        theirs = FrameSocket(listener.accept()[0])
    yield ours, theirs
    theirs.close()


def row_of(session: int, features: memoryview) -> DraftOrders:
    asks = Asks([session], [1], [7], [1], [TreeShape(3, 1, 4)], [5], "float32", len(features) // 4, [features])
    return DraftOrders(1, asks=asks)


async def test_features_that_wait_for_a_lane_are_its_own(ends) -> None:
    ours, theirs = ends
    watched = []
    reader = RoundReader(LinkEpoch("draft:1", 1), incarnation=2, vocab_size=100)
    lane = RoundLane(ours, LaneEnds(reader, watched.append, watched.append, 3, LaneBytes()))
    running = asyncio.create_task(lane.run())
    await asyncio.sleep(0)
    lane.send(row_of(1, memoryview(bytes(MORE_THAN_A_SOCKET_HOLDS))))
    pinned = bytearray(b"old!" * 4)
    lane.send(row_of(2, memoryview(pinned)))
    lane.send(row_of(3, memoryview(pinned)))
    pinned[:] = b"new." * 4
    first, second = (draft_pb2.SpeculateRequest.FromString(theirs.receive()).extend for _ in range(2))
    assert first.session == [1]
    assert second.session == [2, 3]
    assert second.hidden_states.data == b"old!" * 8
    lane.close()
    watched[0].forsake()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
