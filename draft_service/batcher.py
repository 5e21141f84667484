"""Which rows one step runs: rounds first, then a bounded number of bulk rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from draft_service.session import PickedWork, Session
from draft_service.step_batch import StepBatch
from draft_service.waiting_asks import WaitingAsks


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Rows of one step: up to round_rows for asks, and bulk_rows beside them."""

    round_rows: int
    bulk_rows: int

    @property
    def max_rows(self) -> int:
        return self.round_rows + self.bulk_rows


@dataclass(frozen=True, slots=True)
class Picked:
    """One step's work. Asks and rounds run first, for somebody waits for their trees."""

    entries: list[WaitingAsks]
    asks: list[StepBatch]  # what was taken of each entry
    rounds: PickedWork
    bulk: PickedWork


def pick_work(line: Iterable[Session | WaitingAsks], limits: StepLimits) -> Picked:
    """One step's work, taken off the line, whose entries come longest waiting first and all have work.

    An ask with at most bulk_rows rows is run whole, as long as round_rows lasts. What is left, asks with more
    rows before sessions without an ask, shares bulk_rows: a long prompt never delays the trees of others by more.
    """
    entries: list[WaitingAsks] = []
    asks: list[StepBatch] = []
    rounds: PickedWork = []
    waiting: list[Session] = []
    left = limits.round_rows
    for entry in line:
        if isinstance(entry, WaitingAsks):
            taken = entry.take(left)
            if taken is not None:
                left -= len(taken.tokens)
                entries.append(entry)
                asks.append(taken)
            continue
        num_rows = entry.num_rows_to_run
        if entry.ask is None or num_rows > limits.bulk_rows:
            waiting.append(entry)
        elif num_rows <= left:
            left -= num_rows
            rounds.append((entry, entry.take(num_rows)))
    bulk = _pick_bulk(waiting, limits.bulk_rows) if waiting else []
    return Picked(entries, asks, rounds, bulk)


def _pick_bulk(waiting: list[Session], left: int) -> PickedWork:
    """left: rows."""
    bulk: PickedWork = []
    for session in sorted(waiting, key=lambda s: s.ask is None):
        if left == 0:
            break
        work = session.take(left)
        left -= len(work.rows)
        bulk.append((session, work))
    return bulk
