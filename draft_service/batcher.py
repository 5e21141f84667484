"""Which rows one step runs: rounds first, then a bounded number of bulk rows."""

from __future__ import annotations

from collections.abc import Sequence
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


def pick_work(sessions: Sequence[Session], limits: StepLimits) -> list[tuple[Session, Work]]:
    """One step's work, taken off the sessions' queues. Sessions come longest waiting first and all have work.

    An ask with at most bulk_rows rows is run whole, as long as round_rows lasts. What is left, asks with more
    rows before sessions without an ask, shares bulk_rows: a long prompt never delays the trees of others by more.
    """
    picked: list[tuple[Session, Work]] = []
    bulk: list[Session] = []
    left = limits.round_rows
    for session in sessions:
        num_rows = session.num_rows_to_run
        if session.ask is None or num_rows > limits.bulk_rows:
            bulk.append(session)
        elif num_rows <= left:
            left -= num_rows
            picked.append((session, session.take(num_rows)))
    left = limits.bulk_rows
    for session in sorted(bulk, key=lambda s: s.ask is None):
        if left == 0:
            break
        work = session.take(left)
        left -= len(work.rows)
        picked.append((session, work))
    return picked
