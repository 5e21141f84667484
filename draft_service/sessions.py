"""The session table: who holds pages, who may open, who has work."""

from __future__ import annotations

from collections.abc import ValuesView

from draft_service.events import Opening, SyncMessage
from draft_service.replies import Replies, SessionCode, SessionReply, SyncReply
from draft_service.rows import Rows
from draft_service.session import Ask, Session, SessionKey
from engine.pages import OutOfPagesError, PageAllocator, PageTable
from paceline.tracing import Span, Tracer
from paceline.types import MAX_SCRATCH_NODES


class SessionTable:
    """All sessions of all targets. Every call puts what is answered at once into ``replies``.

    One thread only. A session holds pages for max_len + 64 tokens from its open to its release, to its stream's
    end, or to a row that does not fit into it.
    """

    def __init__(
        self, allocator: PageAllocator, *, max_sessions: int, context_length: int, tracer: Tracer | None = None
    ) -> None:
        self.allocator = allocator
        self.max_sessions = max_sessions
        self.context_length = context_length
        self.draining = False
        self._tracer = tracer or Tracer()
        self._spans: dict[SessionKey, Span] = {}  # of the sessions that are traced
        self._sessions: dict[SessionKey, Session] = {}
        self._work: dict[SessionKey, Session] = {}  # sessions with rows or an ask, the longest waiting first

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def with_work(self) -> ValuesView[Session]:
        """Sessions with rows or an ask, the longest waiting first."""
        return self._work.values()

    @property
    def has_work(self) -> bool:
        return bool(self._work)

    def open(self, target: int, opening: Opening, *, stream: int, replies: Replies) -> None:
        """Reserves the session's pages, or answers FULL or DRAINING. A second open is answered with what is held."""
        key = SessionKey(target, opening.session)
        session = self._sessions.get(key)
        if session is None:
            code = self._admit(key, opening, stream)
            replies.add(stream, SessionReply(opening.session, code, 0))
            return
        session.stream = stream
        replies.add(stream, session.reply(SessionCode.OK, 0))

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
        held = session.arrived_len
        if message.base_len + len(rows) > session.max_len:
            replies.syncs.append(SyncReply(message.ticket, message.session, SessionCode.FULL, 0))
            self._close(session, replies)
        elif not session.sync(message.base_len, rows, message.ticket):
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

    def settle(self, session: Session) -> None:
        """To be called after a session's commit. Who has more work keeps its place in the line."""
        if not session.has_work:
            self._work.pop(session.key, None)

    def check(self) -> None:
        """Asserts that the pages held are those of the sessions."""
        self.allocator.check()
        held = sum(len(session.table.pages) for session in self._sessions.values())
        assert held == self.allocator.num_pages - self.allocator.num_free, "pages are held by no session"
        assert all(key in self._sessions for key in self._work), "a closed session has work"

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
        self._sessions[key] = Session(
            key, stream=stream, max_len=opening.max_len, sampling=opening.sampling, table=table
        )
        if opening.traceparent:
            self._spans[key] = self._tracer.begin("draft session", parent=opening.traceparent, session=key.session)
        return SessionCode.OK

    def _note_work(self, session: Session) -> None:
        if session.has_work:
            self._work.setdefault(session.key, session)

    def _close(self, session: Session, replies: Replies) -> None:
        del self._sessions[session.key]
        self._work.pop(session.key, None)
        session.table.close()
        if (span := self._spans.pop(session.key, None)) is not None:
            span.end(committed_len=session.committed_len, rounds=session.num_rounds)
        for ticket in session.queue.tickets():
            replies.syncs.append(SyncReply(ticket, session.key.session, SessionCode.UNKNOWN, 0))
