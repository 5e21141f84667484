"""A lane carries frames of any size, never makes a sender wait, merges what a slow peer leaves, and ends once."""

from __future__ import annotations

import contextlib
import queue
import random
import socket
import threading
from collections.abc import Iterator

import pytest

from paceline.errors import CapacityError, UnavailableError, WireError
from paceline.frames import FrameSocket, frame
from paceline.lane import Lane
from paceline.rpc import MAX_MESSAGE_BYTES
from paceline.rpc_bytes import LaneBytes
from tests.support.lane_reader import reading
from tests.support.waiting import WAIT_S

Item = list[bytes]


class Recorder:
    """A lane's user: items are lists of parts, and a frame is their sum."""

    def __init__(self, *, max_waiting: int = 1 << 30) -> None:
        self.got: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.errors: queue.SimpleQueue[Exception] = queue.SimpleQueue()
        self.max_waiting = max_waiting

    def decode(self, payload: bytes) -> bytes:
        if payload == b"nonsense":
            raise WireError("nonsense")
        return payload

    def deliver(self, event: bytes) -> None:
        self.got.put(event)

    def encode(self, item: Item) -> Item:
        return item

    def merge(self, waiting: Item | None, item: Item) -> Item:
        merged = [*(waiting or []), *item]
        if len(merged) > self.max_waiting:
            raise CapacityError(f"{len(merged)} parts wait")
        return merged

    def ended(self, error: Exception) -> None:
        self.errors.put(error)


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    return ours, theirs


@contextlib.contextmanager
def lane_and_peer(user: Recorder) -> Iterator[tuple[Lane[bytes, Item], socket.socket]]:
    """A lane and the other end's bare socket. In the end no thread of the lane is left, and its socket is closed."""
    ours, theirs = connected()
    with reading() as mailbox, theirs:
        before = set(threading.enumerate())
        lane: Lane[bytes, Item] = Lane(ours, user, LaneBytes(), name="test")
        lane.start(mailbox.watch)
        yield lane, theirs
        lane.close()
        for thread in set(threading.enumerate()) - before:
            thread.join(WAIT_S)
            assert not thread.is_alive()
    assert ours.fileno() == -1


def test_frames_of_all_sizes_arrive_whole_and_in_order() -> None:
    sizes = [0, 1, 3, 70_000, 65_536, 65_532, 65_533, 0, 5, 3_000_000, 2, *(100 * n for n in range(50))]
    payloads = [random.Random(size).randbytes(size) for size in sizes]
    user = Recorder()
    with lane_and_peer(user) as (_, peer):
        peer.sendall(b"".join(frame(payload) for payload in payloads))
        for payload in payloads:
            assert user.got.get(timeout=WAIT_S) == payload


def test_a_frame_of_more_parts_than_the_kernel_takes_is_one_frame() -> None:
    user = Recorder()
    with lane_and_peer(user) as (lane, peer):
        lane.send([bytes([number % 256]) for number in range(3000)])
        assert FrameSocket(peer).receive() == bytes(number % 256 for number in range(3000))


def test_a_frame_that_comes_byte_by_byte_is_one_frame() -> None:
    user = Recorder()
    with lane_and_peer(user) as (_, peer):
        for byte in frame(b"slowly") + frame(b"again"):
            peer.sendall(bytes([byte]))
        assert user.got.get(timeout=WAIT_S) == b"slowly"
        assert user.got.get(timeout=WAIT_S) == b"again"


def test_a_frame_past_the_bound_ends_the_lane_unread() -> None:
    user = Recorder()
    with lane_and_peer(user) as (_, peer):
        peer.sendall((MAX_MESSAGE_BYTES + 1).to_bytes(4, "big"))
        error = user.errors.get(timeout=WAIT_S)
        assert isinstance(error, WireError)
        assert str(MAX_MESSAGE_BYTES + 1) in str(error)
        assert peer.recv(1) == b""


def test_a_lane_on_a_connection_that_is_over_is_refused_as_unavailable() -> None:
    ours, theirs = connected()
    theirs.close()
    ours.close()
    with pytest.raises(UnavailableError, match="the lane broke"):
        FrameSocket(ours)


def test_what_does_not_parse_ends_the_lane() -> None:
    user = Recorder()
    with lane_and_peer(user) as (_, peer):
        peer.sendall(frame(b"sense") + frame(b"nonsense") + frame(b"more"))
        assert user.got.get(timeout=WAIT_S) == b"sense"
        assert isinstance(user.errors.get(timeout=WAIT_S), WireError)
        assert user.got.empty()


def test_the_other_ends_close_is_told_once_and_the_own_never() -> None:
    user = Recorder()
    with lane_and_peer(user) as (lane, peer):
        peer.shutdown(socket.SHUT_WR)
        assert isinstance(user.errors.get(timeout=WAIT_S), UnavailableError)
        lane.send([b"to nobody"])
    with lane_and_peer(user) as (lane, _):
        lane.close()
        lane.send([b"to nobody"])
    assert user.errors.empty()


def test_a_slow_peer_gets_all_that_it_left_merged_and_the_sender_never_waits() -> None:
    user = Recorder()
    parts = [bytes([number]) * 1_000_000 for number in range(40)]
    with lane_and_peer(user) as (lane, peer):
        for part in parts:  # far more than the kernel holds, on this thread, which reads the other end only then
            lane.send([part])
        reader = FrameSocket(peer)
        frames = [reader.receive()]
        while sum(map(len, frames)) < sum(map(len, parts)):
            frames.append(reader.receive())
        assert b"".join(frames) == b"".join(parts)
        assert len(frames) < len(parts), "what waited was one message"
        lane.send([b"and on it goes"])
        assert reader.receive() == b"and on it goes"


def test_a_peer_that_takes_nothing_loses_the_lane_past_the_bound() -> None:
    user = Recorder(max_waiting=100)
    with lane_and_peer(user) as (lane, _):
        for _ in range(400):
            lane.send([bytes(1_000_000)])
        assert isinstance(user.errors.get(timeout=WAIT_S), CapacityError)


def test_bytes_and_messages_are_counted_from_all_threads() -> None:
    user, count = Recorder(), LaneBytes()
    ours, theirs = connected()
    lane: Lane[bytes, Item] = Lane(ours, user, count, name="test")
    with reading() as mailbox, theirs:
        lane.start(mailbox.watch)
        lane.send([b"12345"])
        theirs.sendall(frame(b"123") + frame(b"4"))
        for _ in range(2):
            user.got.get(timeout=WAIT_S)
        lane.close()
    assert (count.counts.sent, count.counts.sent_messages) == (5, 1)
    assert (count.counts.received, count.counts.received_messages) == (4, 2)


@pytest.mark.parametrize("own_end", [True, False])
def test_an_end_lets_go_of_a_writer_that_is_stuck(own_end: bool) -> None:
    user = Recorder()
    with lane_and_peer(user) as (lane, peer):
        for _ in range(20):
            lane.send([bytes(1_000_000)])
        if own_end:
            lane.close()
        else:
            peer.close()
