"""What rehearsals of both services are held to."""

from __future__ import annotations

from typing import Protocol

import pytest

from paceline.frames import FrameSocket
from paceline.loopback import WhileConnected


class Rehearses(Protocol):
    def run(self) -> None: ...

    def close(self) -> None: ...


class CountsLaunches(Protocol):
    launched: int


def assert_ends_with_its_connection(
    rehearsal: Rehearses, end: FrameSocket, counts: CountsLaunches, caplog: pytest.LogCaptureFixture
) -> None:
    """end: of the connection, the peer's. Closes the rehearsal."""
    rehearse = WhileConnected(rehearsal.run)
    rehearse()
    end.shut_down()
    counts.launched = 0
    for _ in range(4):
        rehearse()
    assert not counts.launched
    assert caplog.text.count("rounds are not rehearsed") == 1
    rehearsal.close()
