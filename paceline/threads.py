"""The cores of one machine, the OpenMP settings of processes that share them, and the interpreter's threads."""

from __future__ import annotations

import os
import sys

# What an idle OpenMP thread spins before it sleeps, in libgomp's rounds: about 0.1 ms. A step has some 150 parallel
# regions, so a thread that sleeps at once (0) costs a third of the step (30 ms against 21 ms for one row of the default
# model in bf16); one that spins on (libgomp's default) takes the core from the other services, and under load made
# steps 3 to 10 times slower. Measured on two cores of an AMD EPYC 7003 by `python -m bench.cpu_step`.
SPIN_COUNT = 10_000
SWITCH_INTERVAL_S = 1e-4


def num_cores() -> int:
    """Those that this process may use, where the system says; else all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
