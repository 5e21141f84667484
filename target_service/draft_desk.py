"""DraftDesk: which request has a session with which draft."""

from __future__ import annotations

import logging
from collections.abc import Collection

from target_service.draft_orders import DraftOrders, OpenOrder, OrderTray
from target_service.draft_session import DraftSession
from target_service.draft_state import DraftState
from target_service.events import LinkDown, LinkEpoch, LinkGone, LinkUp, SessionCode
from target_service.load import DraftLoad
from target_service.metrics import TargetMetrics
from target_service.request import RequestKey
from target_service.sequence import Sequence

REOPEN_DELAY_S = 1.0  # before a draft that refused or lost a session is asked for another

_log = logging.getLogger(__name__)


class DraftDesk:
    """Owns every DraftSession. Engine thread only; the clock comes in as now_s.

    A draft that is lost, full or stale costs its requests nothing but the speculation: they decode plainly and
    get a new session, filled from the feature pages, once the draft works again.
    """

    def __init__(self, *, metrics: TargetMetrics, timeout_s: float, has_features: bool) -> None:
        """has_features: False without a head; then no request gets a session."""
        self.drafts: dict[str, DraftState] = {}
        self._followed: dict[RequestKey, Sequence] = {}
        self.followed: Collection[Sequence] = self._followed.values()  # the requests whose decision names a draft, now
        self._orders = OrderTray()
        self._metrics = metrics
        self._timeout_s = timeout_s
        self._has_features = has_features
        self._last_session = 0
        self._look_at_s = 0.0  # for hung drafts

    @property
    def has_orders(self) -> bool:
        """Whether ``take_orders`` would give any."""
        return bool(self._orders.gathered)

    def take_orders(self) -> dict[str, DraftOrders]:
        """The sessions that each link is to open and to release. A new address wants a link."""
        return self._orders.take()

    def orders_of(self, address: str) -> DraftOrders:
        """What gathers for a link."""
        return self._orders.of(address, self.drafts[address].epoch)

    def follow(self, seq: Sequence) -> None:
        """To be called when a request begins and when its decision changes; ``leave`` ends it."""
        address = seq.decision.draft
        if seq.draft is not None and seq.draft.address != address:
            self._detach(seq)
        if address and self._has_features:
            self._followed[seq.key] = seq
        else:
            self._followed.pop(seq.key, None)

    def leave(self, seq: Sequence) -> None:
        """The request ends: its session is released, if it has one."""
        self._followed.pop(seq.key, None)
        if seq.draft is not None:
            self._detach(seq)

    def attach(self, seq: Sequence, now_s: float) -> DraftSession | None:
        """Gives a request without one a session with the draft that its decision names, if that is possible now."""
        address = seq.decision.draft
        state = self.drafts.get(address)
        if state is None:
            state = self.drafts[address] = DraftState()
            self.orders_of(address)
        if not state.connected or state.draining or now_s < state.open_after_s:
            return None
        self._last_session += 1
        session = seq.draft = DraftSession(address, session=self._last_session, epoch=state.epoch)
        state.sessions[session.session] = seq
        self.orders_of(address).opens.append(OpenOrder(session.session, seq.limit, seq.params, seq.span.traceparent))
        return session

    def loads(self) -> list[DraftLoad]:
        """One entry a link, once it stands or has failed. A draft that drains takes no new session: it counts as gone.

        A link that is being made for the first time is no reason for a router to name another draft.
        """
        return [
            DraftLoad(address, state.connected and not state.draining, len(state.sessions))
            for address, state in self.drafts.items()
            if state.connected or state.lost
        ]

    def sync_lag(self) -> int:
        """Committed rows that the drafts of all requests have not acknowledged."""
        sessions = ((seq, seq.draft) for seq in self._followed.values())
        return sum(max(0, seq.committed_len - draft.held_len) for seq, draft in sessions if draft is not None)

    def on_link_up(self, event: LinkUp, now_s: float) -> None:
        """Requests get their sessions when they are asked about next. What this turn ordered for another is moot."""
        state = self.drafts.setdefault(event.at.draft, DraftState())
        state.connect(event.at.epoch, now_s)
        self._orders.drop(event.at.draft)

    def on_link_down(self, event: LinkDown) -> None:
        """Its requests go on without; one log line and one count a loss."""
        state = self.drafts.setdefault(event.at.draft, DraftState())
        num_requests = 0
        if event.at.epoch == state.epoch:
            self._drop_sessions(state)
            num_requests, state.num_dropped = state.num_dropped, 0
            state.lose()
        elif not state.connected:
            state.lose()
        self._metrics.draft_lost(event.at.draft, event.reason)
        _log.warning(
            "draft %s is lost (%s): %s; %d requests decode plainly until it is back",
            event.at.draft,
            event.reason.value,
            event.message,
            num_requests,
        )

    def on_link_gone(self, event: LinkGone) -> None:
        """Forgets the draft until a request names it again."""
        state = self.drafts.pop(event.at.draft, None)
        assert state is None or not state.sessions, "a link without a connection has sessions"

    def living(self, at: LinkEpoch) -> DraftState | None:
        """The draft's state, unless the connection that the event came by is over."""
        state = self.drafts.get(at.draft)
        return state if state is not None and state.connected and state.epoch == at.epoch else None

    def give_up(self, state: DraftState, seq: Sequence, code: SessionCode, now_s: float) -> None:
        """The draft has no session, or one with rows that it was never sent: the request gets another one later."""
        if code is SessionCode.LENGTH_DIFFERS:
            self._detach(seq)
        else:
            self._forget(seq)
        state.draining |= code is SessionCode.DRAINING
        state.open_after_s = now_s + REOPEN_DELAY_S
        self._metrics.session_refused(code)

    def check_hung(self, now_s: float) -> None:
        """Gives up a connection on which nothing came for the timeout while an answer was due.

        A single session that is left without one, to an ask or to rows, for twice as long is opened anew. Looks a
        hundred times within the timeout at most, however often it is called.
        """
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + self._timeout_s / 100
        for address, state in self.drafts.items():
            if not state.connected:
                continue
            silent = now_s - state.heard_at_s > self._timeout_s
            late_sync = state.sync_inflight > 0 and now_s - state.synced_at_s > self._timeout_s
            if silent and (late_sync or state.overdue(now_s - self._timeout_s)):
                self.orders_of(address).reset = f"no answer for {self._timeout_s:g} s"
                self._drop_sessions(state)
                state.lose()
            else:
                for seq in state.overdue(now_s - 2 * self._timeout_s):
                    self._detach(seq)

    def _drop_sessions(self, state: DraftState) -> None:
        state.num_dropped += len(state.sessions)
        for seq in list(state.sessions.values()):
            self._forget(seq)

    def _detach(self, seq: Sequence) -> None:
        session = seq.draft
        assert session is not None
        self._forget(seq)
        self.orders_of(session.address).releases.append(session.session)

    def _forget(self, seq: Sequence) -> None:
        session, seq.draft = seq.draft, None
        assert session is not None
        self.drafts[session.address].sessions.pop(session.session, None)
