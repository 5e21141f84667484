"""PlanRing: rank 0's plans on their way to the other ranks of its host, through shared memory."""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import numpy as np

from paceline.errors import UnavailableError

RING_WORDS = 1 << 18  # 2 MiB: some hundred steps of batch 256
_LINE = 16  # words from one counter to the next: two cache lines, which a processor may fetch as a pair
_WRITE_LIMIT_S = 300.0
# Between looks, a part of the time waited so far: the wait gets that much longer at most, and a long one costs little.
_SLEEP_PART = 1 / 50
_LEAST_SLEEP_S = 20e-6  # the kernel's timer adds about 50 us
_MOST_SLEEP_S = 5e-3


class PlanRing:
    """A stream of int64 arrays from one writer to num_readers readers, each in a process of its own on one host.

    In memory: the count of all words written, each reader's count of words taken, then the ring. An array is its
    length and its values; one that is longer than the ring goes through it in parts. A reader that waits looks without
    a pause for spin_s, then ever less often, down to every 5 ms.

    Nothing notices a peer's death: whoever started the processes watches them. The file's name is needed until all
    have attached; after ``unlink`` the memory goes with the last process, however it ends.
    """

    def __init__(self, path: Path, *, reader: int | None, spin_s: float = 0.0) -> None:
        """Attaches to what ``create`` made. reader: 0 .. num_readers - 1, or None for the writer."""
        with path.open("r+b") as file:
            words = np.frombuffer(mmap.mmap(file.fileno(), 0), np.int64)
        self.path = path
        self._written = words[:1]
        self._taken = words[_LINE : len(words) - RING_WORDS : _LINE]
        self._ring = words[-RING_WORDS:]
        self._reader = reader
        self._spin_s = spin_s
        self._fence = threading.Lock()  # taken and released, it keeps a processor from reordering across it

    @classmethod
    def create(cls, num_readers: int) -> Self:
        """The writer's end. Raises UnavailableError where the host has no room for it."""
        folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
        handle, name = tempfile.mkstemp(prefix="paceline-plans-", dir=folder)
        try:
            # Not a truncate: a full /dev/shm is to be an error here, not a SIGBUS at some later write.
            os.posix_fallocate(handle, 0, (_LINE * (1 + num_readers) + RING_WORDS) * 8)
        except OSError as error:
            os.unlink(name)
            raise UnavailableError(f"no shared memory for the ranks' plans in {name}: {error}; enlarge it") from error
        finally:
            os.close(handle)
        return cls(Path(name), reader=None)

    def unlink(self) -> None:
        """Forgets the name, once all have attached. A second call does nothing."""
        self.path.unlink(missing_ok=True)

    def write(self, array: np.ndarray) -> None:
        """int64, one dimension. Waits while the ring is full; raises UnavailableError where that takes minutes."""
        self._put(np.concatenate([np.array([len(array)], np.int64), array]))

    def read(self) -> np.ndarray:
        """The next array, a copy. Waits for it as long as it takes."""
        return self._get(int(self._get(1)[0]))

    def _put(self, values: np.ndarray) -> None:
        done = 0
        while done < len(values):
            room, written = self._await_room(), int(self._written[0])
            at = written % RING_WORDS
            count = min(len(values) - done, room, RING_WORDS - at)
            self._ring[at : at + count] = values[done : done + count]
            with self._fence:
                pass
            self._written[0] = written + count
            done += count

    def _get(self, length: int) -> np.ndarray:
        assert self._reader is not None
        values = np.empty(length, np.int64)
        done = 0
        while done < length:
            waiting, taken = self._await_words(), int(self._taken[self._reader])
            with self._fence:
                pass
            at = taken % RING_WORDS
            count = min(length - done, waiting, RING_WORDS - at)
            values[done : done + count] = self._ring[at : at + count]
            with self._fence:
                pass
            self._taken[self._reader] = taken + count
            done += count
        return values

    def _await_room(self) -> int:
        """Words that may be written, at least one."""

        def room() -> int:
            return RING_WORDS - (int(self._written[0]) - int(self._taken.min()))

        if not _wait(room, spin_s=self._spin_s, limit_s=_WRITE_LIMIT_S):
            raise UnavailableError(f"a rank has taken no plan for {_WRITE_LIMIT_S:g} s; restart the target")
        return room()

    def _await_words(self) -> int:
        """Words that may be taken, at least one."""

        def waiting() -> int:
            return int(self._written[0]) - int(self._taken[self._reader])

        _wait(waiting, spin_s=self._spin_s)
        return waiting()


def _wait(ready: Callable[[], int], *, spin_s: float, limit_s: float = float("inf")) -> bool:
    """Whether it became ready in time."""
    started_s = time.monotonic()
    while not ready():
        waited_s = time.monotonic() - started_s
        if waited_s > limit_s:
            return False
        if waited_s >= spin_s:
            time.sleep(min(max(waited_s * _SLEEP_PART, _LEAST_SLEEP_S), _MOST_SLEEP_S))
    return True
