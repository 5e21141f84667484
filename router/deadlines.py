"""Whether a request can be done in its time, as far as the measured rates tell. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import CapacityError, DeadlineError


@dataclass(frozen=True, slots=True)
class Outlook:
    """Seconds that a request is going to take; None: nothing was measured that tells."""

    wait_s: float | None  # in the queue
    service_s: float | None  # on a target, to its last token


def check_deadline(outlook: Outlook, left_s: float) -> None:
    """Raises DeadlineError where no wait at all would do, CapacityError with a retry hint where the queue is too long.

    Without measured rates a request has the benefit of the doubt, unless its time is over.
    """
    if left_s <= 0:
        raise DeadlineError("the deadline has passed already; allow more time")
    wait_s, service_s = outlook.wait_s or 0.0, outlook.service_s or 0.0
    if service_s > left_s:
        raise DeadlineError(
            f"{left_s:.3g} s are left and the answer would take about {service_s:.3g} s at the present speed: "
            "allow more time or ask for fewer tokens"
        )
    if wait_s + service_s > left_s:
        late_s = wait_s + service_s - left_s
        raise CapacityError(
            f"{left_s:.3g} s are left, and the request would wait about {wait_s:.3g} s for its turn and then take "
            f"{service_s:.3g} s: allow {late_s:.3g} s more, or try again in that time",
            retry_after_s=late_s,
        )
