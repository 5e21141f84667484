"""Which rows one step runs: rounds first, then a bounded number of bulk rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from draft_service.session import Session, Work


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Rows of one step: up to round_rows for asks, and bulk_rows beside them."""

    round_rows: int
    bulk_rows: int

    @property
    def max_rows(self) -> int:
        return self.round_rows + self.bulk_rows


PickedWork = list[tuple[Session, Work]]


@dataclass(frozen=True, slots=True)
class Picked:
    """One step's work. The rounds run first, for somebody waits for their trees."""

    rounds: PickedWork
    bulk: PickedWork


def pick_work(sessions: Iterable[Session], limits: StepLimits) -> Picked:
    """One step's work, taken off the sessions' queues. Sessions come longest waiting first and all have work.

    An ask with at most bulk_rows rows is run whole, as long as round_rows lasts. What is left, asks with more
    rows before sessions without an ask, shares bulk_rows: a long prompt never delays the trees of others by more.
    """
    rounds: PickedWork = []
    waiting: list[Session] = []
    left = limits.round_rows
    for session in sessions:
        num_rows = session.num_rows_to_run
        if session.ask is None or num_rows > limits.bulk_rows:
            waiting.append(session)
        elif num_rows <= left:
            left -= num_rows
            rounds.append((session, session.take(num_rows)))
    bulk: PickedWork = []
    left = limits.bulk_rows
    for session in sorted(waiting, key=lambda s: s.ask is None):
        if left == 0:
            break
        work = session.take(left)
        left -= len(work.rows)
        bulk.append((session, work))
    return Picked(rounds, bulk)
