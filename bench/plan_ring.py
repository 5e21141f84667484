"""Times a plan's way from rank 0 to another rank of the host, and what a rank that waits costs.

    python -m bench.plan_ring

us from before the write until the reader has its copy, for plans of one request and of 256, a write every 5 ms; with a
reader that looks without a pause, as on GPUs, and with one that sleeps between looks. Then the share of a core of a
reader that waits: in the first second, and later.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil

from engine.plan_ring import PlanRing

_WORDS = {"1 request": 130, "256 requests": 20_000}
_WRITES = 400
_INTERVAL_S = 0.005
_SPINS_S = {"spins": 0.02, "sleeps": 0.0}


def main() -> None:
    print("| reader | plan | median us | 95 % us |\n|---|---|---|---|")
    for how, spin_s in _SPINS_S.items():
        for what, num_words in _WORDS.items():
            taken_us = _write_all(num_words, spin_s)
            print(f"| {how} | {what} | {taken_us[_WRITES // 2]:.0f} | {taken_us[_WRITES * 19 // 20]:.0f} |", flush=True)
    first, later = _idle_shares()
    print(f"\na reader that waits takes {first:.1%} of a core in the first second, then {later:.1%}")


def read(path: Path, spin_s: float) -> None:
    """The reader's process: prints the sorted times once an empty array ends them."""
    ring = PlanRing(path, reader=0, spin_s=spin_s)
    print("attached", flush=True)
    taken_us = []
    while len(array := ring.read()):
        taken_us.append((time.perf_counter_ns() - int(array[0])) / 1e3)
    print(*sorted(taken_us), flush=True)


def _start(ring: PlanRing, spin_s: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.plan_ring", str(ring.path), str(spin_s)]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert reader.stdout is not None
    reader.stdout.readline()
    ring.unlink()
    return reader


def _write_all(num_words: int, spin_s: float) -> list[float]:
    ring = PlanRing.create(1)
    reader = _start(ring, spin_s)
    plan = np.zeros(num_words, np.int64)
    for _ in range(_WRITES):
        time.sleep(_INTERVAL_S)
        plan[0] = time.perf_counter_ns()
        ring.write(plan)
    ring.write(plan[:0])
    return [float(word) for word in reader.communicate()[0].split()]


def _idle_shares() -> tuple[float, float]:
    ring = PlanRing.create(1)
    reader = _start(ring, 0.0)
    process = psutil.Process(reader.pid)
    marks = []
    for pause_s in (0.0, 1.0, 3.0):
        time.sleep(pause_s)
        marks.append((time.perf_counter(), sum(process.cpu_times()[:2])))
    ring.write(np.zeros(0, np.int64))
    reader.communicate()
    shares = [(used - before) / (at - then) for (then, before), (at, used) in itertools.pairwise(marks)]
    return shares[0], shares[1]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        read(Path(sys.argv[1]), float(sys.argv[2]))
    else:
        main()
