"""RehearsalTime: when the decode loop's thread, which waits for a step, goes through the round that follows."""

from __future__ import annotations

from collections.abc import Callable

from target_service.deadline import StepTimes
from target_service.flights import Flight, Flights

_LONGEST_LOOK_S = 0.001  # between looks at a step that may be over sooner than expected
# Before a step's expected end: twice what a rehearsal takes, and the error of the guess. What was gone through 2 ms ago
# is as good as new.
_SPACE = 2.0
_SPACE_S = 0.0003
_SMOOTHING = 0.3


class RehearsalTime:
    """Once within each step that verifies trees and has no other behind it: so shortly before its end that the code
    stays at hand, and so long before that nothing is delayed. Steps that are too short have none."""

    def __init__(
        self, rehearse: Callable[[], object] | None, times: StepTimes, flights: Flights, *, clock: Callable[[], float]
    ) -> None:
        """rehearse: None: never."""
        self._rehearse = rehearse
        self._times = times
        self._flights = flights
        self._clock = clock
        self._pace = 1.0  # of steps with trees, over the warm-up's
        self._takes_s = 0.001  # a rehearsal; averaged
        self._last_step = 0  # whose rehearsal is over, or left out

    def observe(self, flight: Flight) -> None:
        """A step is over. One that took less than expected is believed at once, one that took more by and by."""
        planned = flight.planned
        if planned.due.trees:
            pace = 1e3 * (flight.known_s - flight.planned_s) / self._times.at_warm_up(planned.plan.num_rows)
            self._pace = min(pace, self._pace + _SMOOTHING * (pace - self._pace))

    def wait_s(self) -> float:
        """Rehearses where it is time for that. Else, how long to wait until the next look; 0: none is due within the
        first step under way any more."""
        flights = self._flights
        if self._rehearse is None or flights.count != 1 or not flights.has_trees or flights.number == self._last_step:
            return 0.0
        now_s, launched_s = self._clock(), flights.launched_s
        step_s = self._pace * self._times.at_warm_up(flights.num_rows) / 1e3
        due_s = launched_s + step_s - _SPACE * self._takes_s - _SPACE_S
        if now_s < due_s and not flights.is_over():
            return min(due_s - now_s, _LONGEST_LOOK_S)
        self._last_step = flights.number
        if launched_s < due_s and not flights.is_over():
            self._rehearse()
            self._takes_s += _SMOOTHING * (self._clock() - now_s - self._takes_s)
        return 0.0
