"""The cores of one machine, the OpenMP settings of processes that share them, and the interpreter's threads."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

# What an idle OpenMP thread spins before it sleeps, in libgomp's rounds: about 0.1 ms. A step has some 150 parallel
# regions, so a thread that sleeps at once (0) costs a third of the step (30 ms against 21 ms for one row of the default
# model in bf16); one that spins on (libgomp's default) takes the core from the other services, and under load made
# steps 3 to 10 times slower. Measured on two cores of an AMD EPYC 7003 by `python -m bench.cpu_step`.
SPIN_COUNT = 10_000
SWITCH_INTERVAL_S = 1e-4
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # a container's: microseconds of CPU a period, and the period
_BUSY_WAIT_S = 0.01  # rounds of one request follow each other faster
_MIN_CORES_TO_WAIT_BUSILY = 4


def num_cores() -> int:
    """Those that this process may use, where the system says; else all. A container's share of some counts as whole
    ones."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores_within(_CPU_QUOTA, cores) if _CPU_QUOTA.exists() else cores


def busy_wait_s(wanted_ms: float | None, *, beside_gpu: bool) -> float:
    """How long an engine's thread looks for the next message without sleeping, after the last one.

    A thread that slept is woken some 40 us late, and its code has gone cold. None: so long that rounds of one request
    find it awake, where a GPU computes and the process has cores to spare; else not at all.
    """
    if wanted_ms is not None:
        return wanted_ms / 1e3
    return _BUSY_WAIT_S if beside_gpu and num_cores() >= _MIN_CORES_TO_WAIT_BUSILY else 0.0


def cores_within(quota_file: Path, cores: int) -> int:
    """Of so many cores, those that a cgroup's cpu.max leaves."""
    quota, period = quota_file.read_text().split()
    return cores if quota == "max" else max(1, min(cores, math.ceil(int(quota) / int(period))))


def share_cores(num_threads: int) -> None:
    """To be called before torch is imported. What the user's environment sets stays as it is."""
    os.environ.setdefault("OMP_NUM_THREADS", str(num_threads))
    os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))
    os.environ.setdefault("KMP_BLOCKTIME", "0")


def share_interpreter() -> None:
    """Lets the event loop in while the engine's thread computes in Python, and the reverse.

    Python's own 5 ms is longer than anything that either does: each would wait until the other is done. A round of one
    request was 0.5 to 0.8 ms shorter (`python -m bench.host_round`).
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
