"""One session: the rows that are held, those that wait, and the newest round's ask."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from draft_service.replies import SessionCode, SessionReply
from draft_service.rows import RowQueue, Rows
from draft_service.session_columns import SessionColumns
from engine.pages import PageTable
from paceline.types import TreeShape


class SessionKey(NamedTuple):
    """Session numbers are unique within one incarnation of a target."""

    target: int
    session: int


class Ask(NamedTuple):
    """One session's part of an ExtendInput: rows from base_len on, then a tree if there is a shape."""

    round: int
    base_len: int
    rows: Rows  # none: a tree at base_len
    shape: TreeShape | None
    arrived_s: float
    stop: int  # the length at which the tree is asked for: base_len and the rows

    @classmethod
    def of(cls, round_: int, base_len: int, rows: Rows, *, shape: TreeShape | None, arrived_s: float) -> Ask:
        return cls(round_, base_len, rows, shape, arrived_s, base_len + len(rows))


class Work(NamedTuple):
    """What one step does for one session. shape: the tree that the session's ask wants once the rows are in."""

    base_len: int
    rows: Rows
    tickets: tuple[int, ...]
    shape: TreeShape | None


class Session:
    """Positions [0, committed_len) are in the draft KV, [committed_len, arrived_len) wait, in the queue or elsewhere.

    Owns its page table, which holds max_len tokens and a tree's scratch. At most one ask is open, the newest;
    an ask for rows past arrived_len is parked until bulk rows close the gap. What all rounds need of it stands in the
    columns; a session whose asks come one at a time, each where it is due, is never looked at alone.
    """

    def __init__(self, key: SessionKey, *, seat: int, columns: SessionColumns, table: PageTable) -> None:
        """seat: its own in the columns."""
        self.key = key
        self.seat = seat
        self.table = table
        self.queue = RowQueue()
        self.ask: Ask | None = None
        self.columns = columns
        self._parked: Ask | None = None

    @property
    def committed_len(self) -> int:
        return int(self.columns.committed_len[self.seat])

    @property
    def arrived_len(self) -> int:
        return int(self.columns.arrived_len[self.seat])

    @property
    def stream(self) -> int:
        return int(self.columns.stream[self.seat])

    @property
    def max_len(self) -> int:
        return int(self.columns.max_len[self.seat])

    @property
    def num_rounds(self) -> int:
        """Rounds that it was asked for."""
        return max(int(self.columns.newest_round[self.seat]), 0)

    @property
    def has_work(self) -> bool:
        return self.ask is not None or self.queue.num_rows > 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits here, no parked ask either."""
        return not self.has_work and self._parked is None

    @property
    def num_rows_to_run(self) -> int:
        """Rows before the open ask is served, the repeated last row included; all that wait without an ask."""
        return max(self._num_rows_due, 1)

    def extend(self, ask: Ask) -> SessionReply | None:
        """Takes a round in, or answers it at once; None: the answer comes when its rows are in the KV.

        The rows fit into max_len. A round that was answered gets the same answer again, and one whose answer is on
        its way gets that one only.
        """
        if ask.round <= self.columns.newest_round[self.seat]:
            return self._repeat(ask)
        if ask.base_len == self.arrived_len:
            return self._accept(ask)
        self._parked = ask if ask.base_len > self.arrived_len else None
        return self.reply(SessionCode.LENGTH_DIFFERS, ask.round)

    def sync(self, base_len: int, rows: Rows, ticket: int) -> bool:
        """Takes bulk rows in; False where base_len is not what has arrived. The rows fit into max_len."""
        if base_len != self.arrived_len:
            return False
        self._queue_up(rows, ticket)
        return True

    def resume(self, ask: Ask) -> None:
        """Takes over an ask that was taken in elsewhere."""
        self.queue.put(ask.rows)
        self.ask = ask

    def unpark(self) -> SessionReply | None:
        """Takes in the parked ask once its rows have arrived; the answer where it can no longer be served."""
        ask = self._parked
        if ask is None or ask.base_len > self.arrived_len:
            return None
        self._parked = None
        if ask.base_len == self.arrived_len:
            return self._accept(ask)
        return self.reply(SessionCode.LENGTH_DIFFERS, ask.round)

    def take(self, max_rows: int) -> Work:
        """The next rows to run, at least one and at most max_rows; none past the open ask's."""
        due = self._num_rows_due
        num_rows = min(due, max_rows)
        shape = self.ask.shape if self.ask is not None and num_rows == due else None
        if num_rows == 0:
            return Work(self.committed_len - 1, self.columns.last_row(self.seat), (), shape)
        taken = self.queue.take(num_rows)
        return Work(self.committed_len, taken.rows, taken.tickets, shape)

    def completes(self, work: Work) -> bool:
        """Whether the open ask has all its rows in the KV once the work is."""
        return self.ask is not None and work.base_len + len(work.rows) >= self.ask.stop

    def commit(self, work: Work) -> None:
        """The work is in the KV before any later work; an ask that this completes is no longer open."""
        if self.completes(work):
            self.ask = None
        self.columns.committed_len[self.seat] = work.base_len + len(work.rows)

    def reply(self, code: SessionCode, round_: int) -> SessionReply:
        """An answer without a tree, with the rows that have arrived."""
        return SessionReply(self.key.session, code, self.arrived_len, round_)

    @property
    def _num_rows_due(self) -> int:
        """Bulk rows may have come behind the open ask's: they run after it."""
        return self.queue.num_rows if self.ask is None else self.ask.stop - self.committed_len

    def _accept(self, ask: Ask) -> SessionReply | None:
        columns, seat = self.columns, self.seat
        columns.newest_round[seat] = ask.round
        self._parked = None
        if ask.stop > ask.base_len:
            self._queue_up(ask.rows, None)
        elif self.arrived_len == 0 or (ask.shape is None and self.queue.num_rows == 0):
            self.ask = None
            answer = self.reply(SessionCode.OK, ask.round)
            columns.keep_answers(np.array([seat]), lambda _: answer)
            return answer
        self.ask = ask
        return None

    def _repeat(self, ask: Ask) -> SessionReply | None:
        if ask.round < self.columns.newest_round[self.seat]:
            known = ask.stop <= self.arrived_len
            return self.reply(SessionCode.OK if known else SessionCode.LENGTH_DIFFERS, ask.round)
        return None if self.ask is not None else self.columns.answer(self.seat)

    def _queue_up(self, rows: Rows, ticket: int | None) -> None:
        self.queue.put(rows, ticket=ticket)
        self.columns.arrived_len[self.seat] += len(rows)


PickedWork = list[tuple[Session, Work]]
