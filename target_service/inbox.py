"""Inbox: what happened outside, brought to the desks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from paceline.mailbox import Mailbox
from target_service.emission import ReturnReason
from target_service.events import (
    Cancelled,
    DrainEnded,
    DrainStarted,
    Event,
    LinkDown,
    LinkGone,
    LinkUp,
    PolicySet,
    Refused,
    RowsSynced,
    SessionsAnswered,
    SpeculationUpdated,
    Stopped,
    StreamClosed,
    StreamOpened,
    Submitted,
    TreesArrived,
)
from target_service.loop_parts import LoopParts

_MAY_END_REQUESTS = (Cancelled, StreamClosed, DrainEnded, Stopped)


class Inbox:
    """Engine thread only. While a step is under way, what may end a request of it waits, and with it all that came
    later: so what comes from outside ends requests between two steps alone."""

    def __init__(self, mailbox: Mailbox[Event], parts: LoopParts, *, clock: Callable[[], float]) -> None:
        self.stopped = False
        self._mailbox = mailbox
        self._requests = parts.requests
        self._drafts = parts.drafts
        self._answers = parts.answers
        self._clock = clock
        self._waiting: deque[Event] = deque()

    @property
    def is_holding(self) -> bool:
        """Whether something waits until no step is under way."""
        return bool(self._waiting)

    def take(self, wait_s: float, *, is_busy: bool) -> list[Event]:
        """Waits at most wait_s for events, and applies them. is_busy: a step is under way. Returns the applied ones."""
        self._waiting += self._mailbox.take(0.0 if self._waiting else wait_s)
        applied: list[Event] = []
        while self._waiting and not (is_busy and self._may_end_requests(self._waiting[0])):
            event = self._waiting.popleft()
            self._apply(event)
            applied.append(event)
        return applied

    def _may_end_requests(self, event: Event) -> bool:
        if isinstance(event, Submitted):  # one with the number of another ends both
            return any(request.key in self._requests.sequences for request in event.requests)
        return isinstance(event, _MAY_END_REQUESTS)

    def _apply(self, event: Event) -> None:
        requests, drafts, answers = self._requests, self._drafts, self._answers
        now_s = self._clock()
        match event:
            case Submitted():
                for request in event.requests:
                    requests.submit(request)
            case TreesArrived():
                answers.on_trees(event, now_s)
            case SessionsAnswered():
                answers.on_answers(event, now_s)
            case RowsSynced():
                answers.on_synced(event, now_s)
            case Cancelled():
                requests.cancel(event)
            case SpeculationUpdated():
                requests.update_speculation(event)
            case PolicySet():
                requests.set_policy(event)
            case Refused():
                requests.refuse(event)
            case StreamOpened():
                requests.open_stream(event.stream)
            case StreamClosed():
                requests.close_stream(event.stream)
            case LinkUp():
                drafts.on_link_up(event, now_s)
            case LinkDown():
                drafts.on_link_down(event)
            case LinkGone():
                drafts.on_link_gone(event)
            case DrainStarted():
                requests.draining = True
            case DrainEnded():
                requests.return_all(ReturnReason.DRAINING)
            case Stopped():
                self.stopped = True
