"""How loaded the draft is: what routers choose by."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

_BUSY_WINDOW_S = 1.0
_BUSY_DIGITS = 2  # finer steps would make every look at the clock a change
_SMOOTHING = 0.1


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """busy: share of the last second that the engine thread was at work. propose_ms: arrival to trees, smoothed."""

    num_sessions: int
    free_pages: int
    draining: bool = False
    busy: float = 0.0
    propose_ms: float = 0.0


class BusyMeter:
    """Share of the last second that was worked. Takes the clock's readings as arguments."""

    def __init__(self) -> None:
        self._spans: deque[tuple[float, float]] = deque()

    def add(self, start_s: float, stop_s: float) -> None:
        """A span of work, later than all before it."""
        self._spans.append((start_s, stop_s))
        self._forget(stop_s)

    def share(self, now_s: float) -> float:
        """0 to 1."""
        self._forget(now_s)
        since = now_s - _BUSY_WINDOW_S
        worked = sum(stop - max(start, since) for start, stop in self._spans)
        return min(worked / _BUSY_WINDOW_S, 1.0)

    def _forget(self, now_s: float) -> None:
        while self._spans and self._spans[0][1] <= now_s - _BUSY_WINDOW_S:
            self._spans.popleft()


class Average:
    """An exponential average; the first value counts whole."""

    def __init__(self) -> None:
        self._value: float | None = None

    def add(self, value: float, count: int = 1) -> None:
        """count: times that the value came."""
        old = value if self._value is None else self._value
        self._value = value + (1 - _SMOOTHING) ** count * (old - value)

    @property
    def value(self) -> float:
        return self._value or 0.0


class LoadBoard:
    """The newest figures, for any number of watchers. Event loop only."""

    def __init__(self, figures: LoadFigures, *, clock: Callable[[], float]) -> None:
        self._figures = figures
        self._clock = clock
        self._meter = BusyMeter()
        self._changed = asyncio.Event()

    def update(self, figures: LoadFigures, work: tuple[float, float] | None) -> None:
        """Figures after a step; work: the step's start and stop on the clock."""
        if work is not None:
            self._meter.add(*work)
        if work is not None or figures != self._figures:
            self._figures = figures
            self._changed.set()
            self._changed = asyncio.Event()

    def read(self) -> LoadFigures:
        """The figures now."""
        return replace(self._figures, busy=round(self._meter.share(self._clock()), _BUSY_DIGITS))

    async def watch(self, min_interval_s: float) -> AsyncIterator[LoadFigures]:
        """The figures at once, and then after each change, at most once an interval."""
        last = None
        while True:
            changed = self._changed
            figures = self.read()
            if figures != last:
                last = figures
                yield figures
            if figures.busy == 0 and not changed.is_set():
                await changed.wait()
            await asyncio.sleep(min_interval_s)
