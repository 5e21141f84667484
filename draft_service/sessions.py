"""The session table: who holds pages, who may open, who has work."""

from __future__ import annotations

import itertools
from collections.abc import ValuesView

import numpy as np

from draft_service.events import Opening, RoundMessage, SyncMessage
from draft_service.replies import Replies, SessionCode, SessionReply, SyncReply
from draft_service.rows import Rows
from draft_service.session import Ask, Session, SessionKey
from draft_service.session_columns import ALONE, IDLE, WAITING, SessionColumns
from draft_service.step_batch import StepBatch
from draft_service.waiting_asks import WaitingAsks
from engine.pages import OutOfPagesError, PageAllocator, PageTable
from kernels.round_asks import RoundLimits, take_round
from paceline.tracing import Span, Tracer
from paceline.types import MAX_SCRATCH_NODES

_NO_SEATS: dict[int, int] = {}


class SessionTable:
    """All sessions of all targets. Every call puts what is answered at once into ``replies``.

    One thread only. A session holds pages for max_len + 64 tokens from its open to its release, to its stream's
    end, or to a row that does not fit into it.
    """

    def __init__(
        self, allocator: PageAllocator, *, max_sessions: int, context_length: int, tracer: Tracer | None = None
    ) -> None:
        self.allocator = allocator
        self.columns = SessionColumns(max_sessions, context_length=context_length, page_size=allocator.page_size)
        self.max_sessions = max_sessions
        self.context_length = context_length
        self.draining = False
        self._tracer = tracer or Tracer()
        self._spans: dict[SessionKey, Span] = {}  # of the sessions that are traced
        self._sessions: dict[SessionKey, Session] = {}
        self.seats: dict[int, dict[int, int]] = {}  # in the columns, of each target's sessions
        self._line: dict[SessionKey | int, Session | WaitingAsks] = {}  # what has work, the longest waiting first
        self._line_numbers = itertools.count()
        self.line: ValuesView[Session | WaitingAsks] = self._line.values()  # asks' sessions wait for nothing else

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def has_work(self) -> bool:
        return bool(self._line)

    def open(self, target: int, opening: Opening, *, stream: int, replies: Replies) -> None:
        """Reserves the session's pages, or answers FULL or DRAINING. A second open is answered with what is held."""
        key = SessionKey(target, opening.session)
        session = self._sessions.get(key)
        if session is None:
            code = self._admit(key, opening, stream)
            replies.add(stream, SessionReply(opening.session, code, 0))
            return
        self.columns.stream[session.seat] = stream
        replies.add(stream, session.reply(SessionCode.OK, 0))

    def extend_all(self, message: RoundMessage, batch: StepBatch, replies: Replies, *, limits: RoundLimits) -> None:
        """A message's round, of which the table is MUTATED: seats and arrival. Sessions that wait for nothing, and ask
        within the limits for new rows that are due, stay in columns."""
        seats = self.seats.get(message.target, _NO_SEATS)
        if take_round(self.columns.facts, seats, batch.table, arrived_s=message.arrived_s, limits=limits):
            self._line_up(batch)
            return
        stays = np.zeros(batch.size, np.bool_)
        if len(set(batch.session.tolist())) == batch.size:
            stays = self._which_stay(batch, limits)
        places = stays.nonzero()[0]
        if len(places):
            self._wait(batch.take(places))
        target, stream = message.target, message.stream
        for place in (~stays).nonzero()[0].tolist():
            self.extend(target, int(batch.session[place]), batch.ask(place), stream=stream, replies=replies)

    def extend(self, target: int, number: int, ask: Ask, *, stream: int, replies: Replies) -> None:
        """One session's part of a round. A row past max_len closes the session with FULL."""
        session = self._sessions.get(SessionKey(target, number))
        if session is None:
            replies.add(stream, SessionReply(number, SessionCode.UNKNOWN, 0, ask.round))
            return
        if ask.stop > session.max_len:
            replies.add(stream, SessionReply(number, SessionCode.FULL, 0, ask.round))
            self._close(session, replies)
            return
        self._single_out(session)
        reply = session.extend(ask)
        if reply is not None:
            replies.add(stream, reply)
        self._note_work(session)

    def sync(self, message: SyncMessage, rows: Rows, replies: Replies) -> None:
        """Bulk rows, which may close the gap before a parked ask."""
        session = self._sessions.get(SessionKey(message.target, message.session))
        if session is None:
            replies.syncs.append(SyncReply(message.ticket, message.session, SessionCode.UNKNOWN, 0))
            return
        self._single_out(session)
        held = session.arrived_len
        if message.base_len + len(rows) > session.max_len:
            replies.syncs.append(SyncReply(message.ticket, message.session, SessionCode.FULL, 0))
            self._close(session, replies)
            return
        if not session.sync(message.base_len, rows, message.ticket):
            replies.syncs.append(SyncReply(message.ticket, message.session, SessionCode.LENGTH_DIFFERS, held))
        else:
            reply = session.unpark()
            if reply is not None:
                replies.add(session.stream, reply)
        self._note_work(session)

    def release(self, target: int, number: int, replies: Replies) -> None:
        """Frees a session; an unknown one is no error."""
        session = self._sessions.get(SessionKey(target, number))
        if session is not None:
            self._close(session, replies)

    def end_stream(self, stream: int, replies: Replies) -> None:
        """Frees all sessions of a round stream."""
        for session in [s for s in self._sessions.values() if s.stream == stream]:
            self._close(session, replies)

    def restart(self, target: int, number: int) -> None:
        """An open session for which nothing waits is as it was when it was opened."""
        self.columns.restart(self.seats[target][number])

    def settle(self, session: Session) -> None:
        """To be called after a session's commit. Who has more work keeps its place in the line."""
        self._note_work(session)
        if not session.has_work:
            self._line.pop(session.key, None)

    def commit(self, entry: WaitingAsks, batch: StepBatch) -> None:
        """What was taken of asks that waited in columns: the rows are in the KV before any later work."""
        self.columns.committed_len[batch.seat] = batch.committed_len
        self.columns.state[batch.seat] = IDLE
        self._drop_if_empty(entry)

    def check(self) -> None:
        """Asserts that the pages held are those of the sessions."""
        self.allocator.check()
        held = sum(len(session.table.pages) for session in self._sessions.values())
        assert held == self.allocator.num_pages - self.allocator.num_free, "pages are held by no session"
        alone = (key for key in self._line if isinstance(key, SessionKey))
        assert all(key in self._sessions for key in alone), "a closed session has work"
        assert self.columns.num_free + len(self._sessions) == self.max_sessions, "a seat is lost"

    def _admit(self, key: SessionKey, opening: Opening, stream: int) -> SessionCode:
        if self.draining:
            return SessionCode.DRAINING
        if len(self._sessions) >= self.max_sessions or opening.max_len > self.context_length:
            return SessionCode.FULL
        table = PageTable(self.allocator)
        try:
            table.reserve(opening.max_len + MAX_SCRATCH_NODES)
        except OutOfPagesError:
            return SessionCode.FULL
        seat = self.columns.open(key.target, opening.sampling, table, stream=stream, max_len=opening.max_len)
        self._sessions[key] = Session(key, seat=seat, columns=self.columns, table=table)
        self.seats.setdefault(key.target, {})[key.session] = seat
        if opening.traceparent:
            self._spans[key] = self._tracer.begin("draft session", parent=opening.traceparent, session=key.session)
        return SessionCode.OK

    def _which_stay(self, batch: StepBatch, limits: RoundLimits) -> np.ndarray:
        """bool [b]: of the sessions of a round, in columns."""
        facts = self.columns.facts_of(batch.seat)
        stays: np.ndarray = (
            (batch.seat >= 0)
            & (facts.state == IDLE)
            & (batch.round > facts.newest_round)
            & (batch.base_len == facts.arrived_len)
            & (batch.num_rows > 0)
            & (batch.num_rows <= limits.max_rows)
            & (batch.committed_len <= facts.max_len)
            & (batch.committed_len + batch.shapes[0] <= limits.most_len)
        )
        return stays

    def _wait(self, batch: StepBatch) -> None:
        columns, seats = self.columns, batch.seat
        columns.newest_round[seats] = batch.round
        columns.arrived_len[seats] = batch.committed_len
        columns.state[seats] = WAITING
        self._line_up(batch)

    def _line_up(self, batch: StepBatch) -> None:
        entry = WaitingAsks(next(self._line_numbers), batch)
        self._line[entry.key] = entry

    def _single_out(self, session: Session) -> None:
        """Takes its ask out of those that wait in columns, for the session is to be looked at alone."""
        if self.columns.state[session.seat] != WAITING:
            return
        for entry in self._line.values():
            if isinstance(entry, WaitingAsks) and (ask := entry.pull(session.seat)) is not None:
                session.resume(ask)
                self._drop_if_empty(entry)
                break
        self._note_work(session)

    def _drop_if_empty(self, entry: WaitingAsks) -> None:
        if not entry.has_work:
            del self._line[entry.key]

    def _note_work(self, session: Session) -> None:
        self.columns.state[session.seat] = IDLE if session.is_idle else ALONE
        if session.has_work:
            self._line.setdefault(session.key, session)

    def _close(self, session: Session, replies: Replies) -> None:
        self._single_out(session)
        del self._sessions[session.key]
        seats = self.seats[session.key.target]
        del seats[session.key.session]
        if not seats:
            del self.seats[session.key.target]
        self._line.pop(session.key, None)
        session.table.close()
        if (span := self._spans.pop(session.key, None)) is not None:
            span.end(committed_len=session.committed_len, rounds=session.num_rounds)
        for ticket in session.queue.tickets():
            replies.syncs.append(SyncReply(ticket, session.key.session, SessionCode.UNKNOWN, 0))
        self.columns.close(session.seat)
