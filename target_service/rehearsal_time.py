"""RehearsalTime: when the decode loop's thread, which waits for a step, goes through the round that follows."""

from __future__ import annotations

import time
from collections.abc import Callable

from paceline.rehearsal_pace import RehearsalLength
from target_service.deadline import StepTimes
from target_service.flights import Flight, Flights

_LONGEST_PAUSE_S = 0.001  # between looks at a step that may be over sooner than expected
_SMOOTHING = 0.3
_FORGETTING = 0.99  # a step without room for a rehearsal: those that took long for a while are not the last


class RehearsalTime:
    """Once within each step that verifies trees and has no other behind it: so shortly before its end that the code
    stays at hand, and so long before that nothing is delayed. Steps that are too short have none, nor those that are
    looked at too late."""

    def __init__(
        self,
        rehearse: Callable[[], object],
        times: StepTimes,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._rehearse = rehearse
        self._times = times
        self._clock = clock
        self._pause = pause
        self._pace = 1.0  # of steps with trees, over the warm-up's
        self._length = RehearsalLength(0.001)

    def observe(self, flight: Flight) -> None:
        """A step is over. One that took less than expected is believed at once, one that took more by and by; one that
        was launched behind another tells nothing, for it had to wait."""
        planned = flight.planned
        if planned.due.trees and not flight.is_queued:
            pace = 1e3 * (flight.known_s - flight.planned_s) / self._times.at_warm_up(planned.plan.num_rows)
            self._pace = min(pace, self._pace + _SMOOTHING * (pace - self._pace))

    def spend(self, flights: Flights) -> None:
        """Before ``land``: rehearses when it is time for that, and returns before the step is over, or soon after."""
        if flights.count != 1 or not flights.has_trees:
            return
        launched_s, now_s = flights.launched_s, self._clock()
        step_s = self._pace * self._times.at_warm_up(flights.num_rows) / 1e3
        due_s = launched_s + step_s - self._length.space_s
        if due_s < launched_s:
            self._length.takes_s *= _FORGETTING
            return
        while now_s < due_s and not flights.is_over():
            self._pause(min(due_s - now_s, _LONGEST_PAUSE_S))
            now_s = self._clock()
        if now_s < due_s + self._length.takes_s and not flights.is_over():
            self._rehearse()
            self._length.note(self._clock() - now_s)
