"""Plans through TCP: every array arrives, in order, and an end is noticed by the other end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from engine.plan_socket import PlanReceiver, PlanSender
from paceline.errors import UnavailableError
from tests.support.waiting import WAIT_S

HOST = "127.0.0.1"


class Pair:
    """A sender and its only receiver."""

    def __init__(self) -> None:
        self.lost = threading.Event()
        self.sender = PlanSender.listen(HOST, 1)
        invitation = self.sender.invitation(HOST)
        stranger = socket.create_connection((HOST, int(invitation.split()[1])))
        stranger.sendall(bytes(16))  # with another token: no reader
        self.receiver = PlanReceiver(invitation, limit_s=WAIT_S)
        self.sender.accept(limit_s=WAIT_S, on_lost=self.lost.set)
        assert stranger.recv(1) == b""
        stranger.close()

    def leave(self) -> None:
        """The receiver goes; returns once the sender's thread has seen it."""
        self.receiver._socket.close()
        for watch in [thread for thread in threading.enumerate() if thread.name == "plan readers"]:
            watch.join(WAIT_S)
            assert not watch.is_alive()

    def close(self) -> None:
        self.leave()
        for reader in self.sender._readers:
            reader.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def test_arrays_of_any_length_arrive_in_order(pair: Pair) -> None:
    arrays = [np.arange(length) * 7 for length in (1, 300, 200_000, 5, 0)]
    writer = threading.Thread(target=lambda: [pair.sender.write(array) for array in arrays])
    writer.start()
    for array in arrays:
        np.testing.assert_array_equal(pair.receiver.read(), array)
    writer.join()


def test_a_reader_that_goes_is_told_and_later_plans_fail(pair: Pair) -> None:
    pair.receiver._socket.close()
    assert pair.lost.wait(WAIT_S)
    with pytest.raises(UnavailableError, match="restart the target"):
        pair.sender.write(np.arange(10_000_000))  # more than the network takes in


def test_a_reader_that_goes_after_the_farewell_is_not_missed(pair: Pair) -> None:
    pair.sender.write(np.empty(0, np.int64))
    assert len(pair.receiver.read()) == 0
    pair.leave()
    assert not pair.lost.is_set()


def test_a_sender_that_goes_ends_the_reader(pair: Pair) -> None:
    pair.sender._readers[0].shutdown(socket.SHUT_RDWR)
    with pytest.raises(UnavailableError, match="rank 0 is gone"):
        pair.receiver.read()


def test_a_host_that_is_not_this_one_is_refused() -> None:
    with pytest.raises(UnavailableError, match="--dist-init-addr must name this host"):
        PlanSender.listen("192.0.2.1", 1)
