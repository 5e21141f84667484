"""RehearsalPace: when a thread that looks for what comes next goes through the code that it will need."""

from __future__ import annotations

_EVERY_S = 0.002  # 0.5 ms keep code no warmer, 5 leave it cold (`python -m bench.host_draft --rehearse-ms`)
_SPACE = 2.0  # times what a rehearsal takes
_SPACE_S = 0.0003  # the error of a guess
_SMOOTHING = 0.3


class RehearsalLength:
    """How long a rehearsal takes, averaged, in seconds. One alone that took longer than those around it did so by
    chance, and does not count: each of 35 ms would keep a hundred steps of 10 ms from theirs."""

    def __init__(self, takes_s: float) -> None:
        """takes_s: before any was seen."""
        self.takes_s = takes_s
        self._last_s = takes_s

    @property
    def space_s(self) -> float:
        """Before a wait's expected end, that a rehearsal is to begin."""
        return _SPACE * self.takes_s + _SPACE_S

    def note(self, took_s: float) -> None:
        """One is over."""
        self.takes_s += _SMOOTHING * (min(took_s, self._last_s) - self.takes_s)
        self._last_s = took_s


class RehearsalPace:
    """A wait is expected to last as long as the one before. A rehearsal comes so long before its end that nothing has
    to wait for it, and again every 2 ms where it lasts longer. Pure: seconds of the caller's clock."""

    def __init__(self) -> None:
        self._began_s = 0.0
        self._last_s = 0.0  # how long the last wait was
        self._length = RehearsalLength(0.0005)
        self.due_s = 0.0  # when to rehearse next
        self.came_s = 0.0  # the caller sets it when something ends the wait: a call takes a cold host 5 us

    def begin(self, now_s: float) -> None:
        """A wait begins."""
        if self.came_s > self._began_s:
            self._last_s = self.came_s - self._began_s
        self._began_s = now_s
        self.due_s = now_s + self._last_s
        if self._last_s < _EVERY_S:
            self.due_s += _EVERY_S
        else:
            self.due_s -= self._length.space_s

    def rehearsed(self, began_s: float, now_s: float) -> None:
        """What was due is over. began_s: later than due where that was before the wait."""
        self._length.note(now_s - began_s)
        self.due_s = max(now_s, self._began_s + self._last_s) + _EVERY_S
