"""Rehearsal: rounds that nobody asked for, so that a round's code is at hand when somebody does."""

from __future__ import annotations

import time

import numpy as np

from draft_service.batcher import StepLimits
from draft_service.codec import Edge, RoundDecoder, pack_replies
from draft_service.draft_engine import DraftEngine
from draft_service.events import Event, Opening, RoundMessage
from draft_service.extend_codec import encode_round
from draft_service.replies import Replies, StreamReplies
from draft_service.sessions import SessionTable
from engine.device_drafter import DeviceDrafter
from engine.extend_batch import ExtendBatch
from engine.pages import PageAllocator, pages_for
from engine.tree_columns import TreeColumns
from kernels.growth import GrowthShape
from paceline.errors import CapacityError
from paceline.lane import Lane
from paceline.loopback import LONGEST_WAY_S, FarEnd, loopback_pair
from paceline.mailbox import Mailbox
from paceline.rounds import ITEM_SIZES, ExtendColumns, RawTensor
from paceline.rpc_bytes import LaneBytes
from paceline.types import MAX_SCRATCH_NODES, SamplingParams

_MAX_LEN = 128  # of the session: a row, a tree of any depth
_STREAM = _TARGET = _SESSION = 0


class Rehearsal:
    """A session of its own that asks for its first tree, again and again, by the code of all sessions, from a message's
    bytes on a lane over loopback, the kernel's included, to an answer's. The drafter fills and copies its tables, and
    launches a graph of one small kernel in place of each of a round's.

    A thread that has only looked for a message for 5 ms takes 1.7 times as long for a round of one session as with
    rehearsals, and 1.3 times for a round of 64 (`python -m bench.host_draft --pause-ms 5`, without and with
    --rehearse-ms 2).
    """

    def __init__(self, drafter: DeviceDrafter, *, edge: Edge, dtype: str, page_size: int) -> None:
        """drafter: one with graphs for some shape; ``run`` is its thread's. Raises UnavailableError where there is no
        connection over loopback."""
        shape = drafter.captured_shapes[0]
        allocator = PageAllocator(pages_for(_MAX_LEN + MAX_SCRATCH_NODES, page_size), page_size)
        self._table = SessionTable(allocator, max_sessions=1, context_length=_MAX_LEN)
        source = _StagingSource(drafter, shape)
        self._engine = DraftEngine(source, self._table, limits=StepLimits(1, 1), clock=time.perf_counter)
        self._mailbox = Mailbox[Event]()
        ours, theirs = loopback_pair()
        user = _LaneUser(RoundDecoder(edge, _STREAM, _TARGET, time.perf_counter), self._mailbox)
        self._target = FarEnd(theirs)
        self._num_answers = 0  # of the last one
        self._lane: Lane[RoundMessage, StreamReplies] = Lane(ours, user, LaneBytes(), name="rehearsal")
        self._lane.start(self._mailbox.watch)
        self._payload = _payload(shape, edge.feature_size, dtype)
        opening = Opening(_SESSION, _MAX_LEN, SamplingParams())
        self._engine.apply([RoundMessage(_STREAM, _TARGET, (opening,), None, (), 0.0)], Replies())
        self.run()

    def run(self) -> None:
        """One round, as long as any, less the device's part. Raises UnavailableError where the connection broke."""
        self._table.restart(_TARGET, _SESSION)
        self._num_answers = 0
        self._target.send(self._payload)
        self._engine.apply(self._mailbox.take(LONGEST_WAY_S), Replies())
        if self._engine.has_work:
            self._engine.step(self._answer)
        self._target.take_in(self._num_answers)

    def close(self) -> None:
        self._lane.close()
        self._mailbox.close()
        self._target.close()

    def _answer(self, replies: Replies) -> None:
        for part in replies.by_stream.values():
            self._num_answers += 1
            self._lane.send(part)


class _LaneUser:
    """See paceline.lane; of a lane whose both ends are its own."""

    def __init__(self, decoder: RoundDecoder, mailbox: Mailbox[Event]) -> None:
        self.decode = decoder.parse
        self.deliver = mailbox.put

    def encode(self, item: StreamReplies) -> tuple[bytes]:
        return (pack_replies(item, _TARGET),)

    def merge(self, waiting: StreamReplies | None, item: StreamReplies) -> StreamReplies:
        raise CapacityError("the answers to rehearsals are not taken")

    def ended(self, error: Exception) -> None:
        """There is nobody to tell."""


class _StagingSource:
    """A TreeSource that grows the same tree at once."""

    def __init__(self, drafter: DeviceDrafter, shape: GrowthShape) -> None:
        size = shape.num_nodes
        self._drafter = drafter
        self._rows = np.array([size, *range(size), *range(-1, size - 1)], np.int32)

    def begin(self, batch: ExtendBatch) -> _StagingSource:
        self._drafter.rehearse(batch)
        return self

    def is_ready(self) -> bool:
        return True

    def trees(self) -> TreeColumns:
        return TreeColumns.of_rows(self._rows.tobytes(), 1)


def _payload(shape: GrowthShape, feature_size: int, dtype: str) -> bytes:
    """A round of one row."""

    def one(value: int) -> np.ndarray:
        return np.full(1, value, np.int64)

    columns = ExtendColumns(
        session=np.full(1, _SESSION, np.uint64),
        round=one(1),
        base_committed_len=one(0),
        num_tokens=one(1),
        propose=np.ones(1, np.bool_),
        num_steps=one(shape.num_steps),
        eagle_topk=one(shape.topk),
        num_draft_tokens=one(shape.num_nodes),
        min_path_permille=one(0),
        verified_id=np.zeros(1, np.int32),
        hidden_states=RawTensor(dtype, (1, feature_size), bytes(ITEM_SIZES[dtype] * feature_size)),
    )
    return encode_round(columns, _TARGET)
