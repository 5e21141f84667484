"""A wait by C ends with the first descriptor that has something or with its time, and names those that have."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from kernels import busy_wait
from kernels.busy_wait import pause

LOOK = busy_wait.LOOK
if LOOK is None:
    pytest.skip("the C extension is not built", allow_module_level=True)


@pytest.fixture
def pipes() -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    both = os.pipe(), os.pipe()
    yield both
    for end in (*both[0], *both[1]):
        os.close(end)


def test_it_names_those_that_have_something_or_have_ended(pipes: tuple[tuple[int, int], tuple[int, int]]) -> None:
    (ear, bell), (other, _) = pipes
    assert LOOK([ear, other], 0.0) == []
    os.write(bell, b"x")
    assert LOOK([ear, other], 60.0) == LOOK([other, ear], -1.0) == [ear]
    closing, gone = os.pipe()
    os.close(gone)
    assert LOOK([other, closing, ear], 60.0) == [closing, ear]
    os.close(closing)


def test_it_lasts_as_long_as_it_was_told_and_lets_other_threads_in(
    pipes: tuple[tuple[int, int], tuple[int, int]],
) -> None:
    ear, bell = pipes[0]
    since_s = time.monotonic()
    assert LOOK([ear], 0.01) == []
    pause(0.01)
    assert time.monotonic() - since_s >= 0.02
    threading.Timer(0.01, os.write, (bell, b"x")).start()
    assert LOOK([ear], 60.0) == [ear]


def test_a_signal_ends_it_without_an_error() -> None:
    taken: list[list[int]] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    waiting = threading.Thread(target=lambda: taken.append(LOOK([], 60.0)))
    waiting.start()
    while waiting.is_alive():
        signal.pthread_kill(waiting.ident, signal.SIGUSR1)
        time.sleep(0.001)
    signal.signal(signal.SIGUSR1, before)
    assert taken == [[]]


def test_what_are_no_descriptors_are_refused() -> None:
    for number in (-1, 2**40):
        with pytest.raises(ValueError, match="is no descriptor"):
            LOOK([number], 0.0)
    with pytest.raises(TypeError):
        LOOK(["1"], 0.0)
    with pytest.raises(OverflowError):
        LOOK([2**70], 0.0)
    with pytest.raises(TypeError):
        LOOK([], None)
    with pytest.raises(TypeError):
        LOOK([])
