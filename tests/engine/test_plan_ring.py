"""Plans through shared memory to real processes: every array arrives, in order, on every reader."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from engine import plan_ring
from engine.plan_ring import RING_WORDS, PlanRing
from paceline.errors import UnavailableError

ROOT = Path(__file__).parents[2]
LENGTHS = [1, 0, 300, RING_WORDS - 7, RING_WORDS, 5, 3 * RING_WORDS + 11, 0, 42]

# Answers each array with its length and sum, and ends after the last one.
READER = """
import sys
from pathlib import Path
from engine.plan_ring import PlanRing
ring = PlanRing(Path(sys.argv[1]), reader=int(sys.argv[2]))
print("attached", flush=True)
while True:
    array = ring.read()
    print(len(array), array.sum(), flush=True)
    if len(array) == 42:
        break
"""


@pytest.fixture
def ring() -> Iterator[PlanRing]:
    ring = PlanRing.create(2)
    yield ring
    ring.unlink()


@pytest.fixture
def readers(ring: PlanRing) -> Iterator[list[subprocess.Popen[str]]]:
    """Two processes, attached."""
    command = [sys.executable, "-c", READER, str(ring.path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    readers = [
        subprocess.Popen([*command, str(reader)], stdout=subprocess.PIPE, text=True, env=environment)
        for reader in range(2)
    ]
    assert [reader.stdout.readline() for reader in readers] == ["attached\n"] * 2
    yield readers
    for reader in readers:
        reader.kill()
        reader.wait()
        reader.stdout.close()


def test_arrays_of_any_length_reach_every_process_in_order(
    ring: PlanRing, readers: list[subprocess.Popen[str]]
) -> None:
    ring.unlink()
    generator = np.random.default_rng(3)
    arrays = [generator.integers(-(2**62), 2**62, length) for length in LENGTHS]
    for array in arrays:
        ring.write(array)
    for reader in readers:
        lines = reader.communicate(timeout=60)[0].splitlines()
        assert lines == [f"{len(array)} {array.sum()}" for array in arrays]


def test_a_reader_that_has_waited_for_long_costs_next_to_nothing(
    ring: PlanRing, readers: list[subprocess.Popen[str]]
) -> None:
    time.sleep(50 * plan_ring._MOST_SLEEP_S)
    processes = [psutil.Process(reader.pid) for reader in readers]
    before_s = [sum(process.cpu_times()[:2]) for process in processes]
    time.sleep(0.5)
    for process, before in zip(processes, before_s, strict=True):
        assert sum(process.cpu_times()[:2]) - before < 0.1


def test_a_name_that_was_forgotten_leaves_nothing_behind(ring: PlanRing) -> None:
    assert ring.path.exists()
    ring.unlink()
    ring.unlink()
    assert not ring.path.exists()
    reader = ring.path
    with pytest.raises(FileNotFoundError):
        PlanRing(reader, reader=0)


def test_a_reader_that_takes_nothing_ends_the_write_with_an_error(
    ring: PlanRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_ring, "_WRITE_LIMIT_S", 0.01)
    with pytest.raises(UnavailableError, match=r"taken no plan for 0\.01 s"):
        ring.write(np.zeros(RING_WORDS, np.int64))


def test_a_full_host_is_an_error_with_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_ring, "RING_WORDS", 1 << 58)
    with pytest.raises(UnavailableError, match="no shared memory"):
        PlanRing.create(1)
