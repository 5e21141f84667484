"""Progress of a step: a bar on a terminal, a line now and then elsewhere, and the end of the time allowed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from tqdm import tqdm

from paceline.errors import DeadlineError

_LINE_EVERY_S = 15.0
_PACE_AFTER_S = 5.0  # the first steps, which compile and warm up, are then a small part


class Deadline:
    """Of the whole run."""

    def __init__(self, limit_s: float | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._started_s = clock()

    @property
    def has_passed(self) -> bool:
        return self._limit_s is not None and self._clock() - self._started_s >= self._limit_s

    def check(self, done: str) -> None:
        """Raises DeadlineError once it has passed. done: what is kept."""
        if self.has_passed:
            raise DeadlineError(
                f"stopped after --time-limit-s {self._limit_s:g} with {done}; run the same command again to go on"
            )


@contextmanager
def told(what: str, device: torch.device) -> Iterator[None]:
    """Says what a step of the run took: time, and memory of a GPU at its peak."""
    started_s = time.monotonic()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    yield
    line = f"{what}: done in {time.monotonic() - started_s:.1f} s"
    if device.type == "cuda":
        line += f", {torch.cuda.max_memory_allocated(device) / 2**30:.1f} GiB at most"
    print(line, file=sys.stderr, flush=True)


class Progress:
    """Of one step of the run, counted in unit. Says what time is left once _PACE_AFTER_S have shown its pace."""

    def __init__(
        self, what: str, *, total: int, start: int, unit: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._what, self._unit = what, unit
        self._bar = tqdm(desc=what, total=total, initial=start, unit=f" {unit}", unit_scale=True, disable=None)
        self._is_silent = bool(self._bar.disable)
        self._total, self._start, self._done = total, start, start
        self._started_s = self._said_s = clock()
        self._has_said_cost = False

    def advance(self, count: int, note: str = "") -> None:
        self._done += count
        if not self._has_said_cost and self._clock() - self._started_s >= _PACE_AFTER_S:
            self._has_said_cost = True
            if left := self._time_left():
                tqdm.write(f"{self._what}: {left} at the pace so far", file=sys.stderr)
        if not self._is_silent:
            if note:
                self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(count)
        elif self._clock() - self._said_s >= _LINE_EVERY_S:
            self._say(note)

    def close(self, note: str = "") -> None:
        """Ends with a line of its own."""
        self._bar.close()
        self._say(note)

    def _say(self, note: str) -> None:
        self._said_s = self._clock()
        rate = self._rate()
        digits = 0 if rate >= 10 else 2
        line = f"{self._what}: {self._done:,} of {self._total:,} {self._unit}, {rate:,.{digits}f} {self._unit}/s"
        print(", ".join(filter(None, [line, self._time_left(), note])), file=sys.stderr, flush=True)

    def _rate(self) -> float:
        return (self._done - self._start) / max(self._clock() - self._started_s, 1e-9)

    def _time_left(self) -> str:
        """ "" at the end, and before anything is done."""
        if self._done >= self._total or self._done == self._start:
            return ""
        return f"{tqdm.format_interval((self._total - self._done) / self._rate())} left"
