"""The draft's end of ``bench.host_path``: a lane over loopback, served by the thread that steps the target."""

from __future__ import annotations

import asyncio
import socket

import numpy as np

from bench.host_path_model import VOCAB_SIZE
from paceline.frames import FrameSocket
from paceline.mailbox import Mailbox
from paceline.round_codec import decode_extend, fill_verify
from paceline.rounds import ExtendColumns, VerifyColumns
from paceline.rpc_bytes import LaneBytes
from paceline.v1 import draft_pb2
from target_service.draft_codec import RoundReader
from target_service.events import Event, LinkEpoch
from target_service.round_lane import LaneEnds, RoundLane, RoundLanes

DRAFT_LINK = LinkEpoch("draft:1", 1)

_INCARNATION = 1
_PARENTS = np.array([-1, 0, 0, 1, 1, 2, 4, 4], np.int32)


class PeerDraft:
    """Answers every ask with the same tree. Owns its end of the lane until ``close``."""

    def __init__(self, sock: socket.socket) -> None:
        self._frames = FrameSocket(sock)

    def answer(self, num_messages: int) -> None:
        """Takes so many of the target's messages, which must be under way, and sends what they ask for."""
        for _ in range(num_messages):
            asked = draft_pb2.SpeculateRequest.FromString(self._frames.receive())
            reply = draft_pb2.SpeculateResponse()
            if asked.open:
                reply.status.session.extend(order.session for order in asked.open)
                reply.status.code.extend([draft_pb2.SESSION_CODE_OK] * len(asked.open))
                reply.status.committed_len.extend([0] * len(asked.open))
                reply.status.round.extend([0] * len(asked.open))
            if asked.HasField("extend"):
                fill_verify(reply.verify, _trees(decode_extend(asked.extend)), _INCARNATION)
            if asked.open or asked.HasField("extend"):
                self._frames.send(self._frames.send_now(reply.SerializeToString()))

    def close(self) -> None:
        self._frames.close()


async def open_lane(mailbox: Mailbox[Event]) -> tuple[RoundLanes, PeerDraft]:
    """A lane that stands, read by the mailbox's thread."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        sock = socket.create_connection(door.getsockname())
        peer, _ = door.accept()
    lanes = RoundLanes(mailbox.watch)
    reader = RoundReader(DRAFT_LINK, _INCARNATION, VOCAB_SIZE)
    lane = RoundLane(sock, LaneEnds(reader, mailbox.put, mailbox.watch, _INCARNATION, LaneBytes()))
    lanes.add(DRAFT_LINK.draft, lane)
    running = asyncio.create_task(lane.run())
    await asyncio.sleep(0)
    running.cancel()
    return lanes, PeerDraft(peer)


def _trees(extend: ExtendColumns) -> VerifyColumns:
    size, nodes = len(extend.session), len(_PARENTS)
    tokens = np.tile(np.arange(100, 100 + nodes, dtype=np.int32), (size, 1))
    tokens[:, 0] = extend.verified_id[np.cumsum(extend.num_tokens) - 1]
    return VerifyColumns(
        session=extend.session,
        round=extend.round,
        base_committed_len=extend.base_committed_len + extend.num_tokens,
        num_tokens=np.full(size, nodes, np.int64),
        draft_token=tokens.reshape(-1),
        parents=np.tile(_PARENTS, size),
    )
