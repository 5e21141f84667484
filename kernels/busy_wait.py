"""Waits of a thread that must not sleep: for what sockets have next, or for a moment.

They pause between two looks and hold no lock of the interpreter. A hypervisor may hide that two of its cores are one
core's threads: one that looks without a pause then slows down the one that it waits for.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from kernels.extension import EXTENSION

# Descriptors, seconds: those that have something to read, or have ended. Looks once at least, and again until one has,
# the time is over or a signal comes. Raises OSError and ValueError. None without the C extension.
LOOK: Callable[[list[int], float], list[int]] | None = None if EXTENSION is None else EXTENSION.look


def pause(for_s: float) -> None:
    """For so many seconds, or until a signal comes; sleeps without the C extension."""
    if LOOK is None:
        time.sleep(for_s)
    else:
        LOOK([], for_s)
