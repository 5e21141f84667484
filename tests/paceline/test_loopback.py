"""A process's connection with itself, and a service's going without where it has none."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from paceline.errors import UnavailableError
from paceline.frames import FrameSocket, frame
from paceline.loopback import FarEnd, loopback_pair, made_if_connected


@contextmanager
def no_descriptors() -> Iterator[None]:
    """The process may open no file and no socket more."""
    free = os.dup(0)
    os.close(free)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_one_end_sends_the_other_receives() -> None:
    ours, theirs = loopback_pair()
    with ours, theirs:
        for sender, receiver in ((ours, theirs), (theirs, ours)):
            sender.sendall(b"round")
            assert receiver.recv(5) == b"round"


def test_a_process_that_may_open_no_socket_is_told_why() -> None:
    with no_descriptors(), pytest.raises(UnavailableError, match="no connection over loopback: Too many open files"):
        loopback_pair()


def test_a_service_without_loopback_does_without_rehearsals_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with no_descriptors():
        assert made_if_connected(loopback_pair) is None
    assert "rounds are not rehearsed" in caplog.text
    assert "Too many open files" in caplog.text


def test_an_end_that_takes_nothing_any_more_ends_its_rehearsals() -> None:
    ours, theirs = loopback_pair()
    end = FarEnd(theirs)

    def fill() -> None:
        for _ in range(1000):
            end.send(bytes(65536))

    with ours, pytest.raises(UnavailableError, match="takes nothing any more"):
        fill()
    end.close()


def test_what_comes_late_is_taken_the_next_time() -> None:
    ours, theirs = loopback_pair()
    near, end = FrameSocket(ours), FarEnd(theirs)
    for _ in range(50):
        end.take_in(2)
        near.send(frame(b"late") + frame(b"later"))
        end.take_in(0)
    for _ in range(9):
        end.take_in(0)
    with pytest.raises(UnavailableError, match="nothing came of 10 rounds"):
        end.take_in(0)
    near.close()
    end.close()
