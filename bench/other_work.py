"""OtherWork: how much of the machine other processes use meanwhile."""

from __future__ import annotations

import time

import psutil

_WORK = ("user", "nice", "system", "irq", "softirq", "steal")


class OtherWork:
    """From when it is made: the CPU time of all but this process and its children, the services that it started.

    Time that the machine's own host takes away counts as well.
    """

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._all_s, self._own_s = _all_cpu_s(), _own_cpu_s()

    def share(self) -> float:
        """Of the machine's CPU time until now, 0 to 1."""
        spent_s = _all_cpu_s() - self._all_s - (_own_cpu_s() - self._own_s)
        available_s = (time.monotonic() - self._began_s) * (psutil.cpu_count() or 1)
        return min(max(spent_s / available_s, 0.0), 1.0)


def _all_cpu_s() -> float:
    times = psutil.cpu_times()
    return sum(getattr(times, name, 0.0) for name in _WORK)


def _own_cpu_s() -> float:
    this = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in (this, *this.children(recursive=True)))
