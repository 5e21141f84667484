"""The spans of one request at the router: the whole, and the stage that it is in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.tracing import NO_SPAN, Span
from paceline.types import FinishReason, SpeculationDecision

if TYPE_CHECKING:
    from router.live_request import LiveRequest


class RequestTrace:
    """The whole span has a child for each wait in the queue and for each attempt on a target, one after the other."""

    __slots__ = ("_span", "_stage")

    def __init__(self, span: Span = NO_SPAN) -> None:
        """span: of the request; the first wait begins now."""
        self._span = span
        self._stage = span.child("queue")

    @property
    def traceparent(self) -> str:
        """Of the stage: what the target's span goes under."""
        return self._stage.traceparent

    @property
    def trace_id(self) -> str:
        """ "" where it is not traced."""
        return self._span.traceparent[3:35]

    def attempt(self, live: LiveRequest, *, target: str, decision: SpeculationDecision) -> None:
        """It leaves the queue for a target."""
        if self._span is NO_SPAN:
            return
        self._stage.end()
        self._stage = self._span.child(
            "attempt", number=live.attempt, target=target, draft=decision.draft, decision=decision.reason
        )

    def wait(self, reason: str) -> None:
        """The attempt is over, and it waits for another."""
        if self._span is not NO_SPAN:
            self._stage.end(error=reason)
            self._stage = self._span.child("queue")

    def first_token(self) -> None:
        self._span.note("first token")

    def end(self, live: LiveRequest) -> None:
        """Its call is over."""
        if self._span is NO_SPAN:
            return
        outcome, stats = live.outcome, live.stats
        finished = isinstance(outcome, FinishReason)
        error = "" if finished else "cancelled by the client" if outcome is None else str(outcome)
        self._stage.end(error=error)
        self._span.end(
            error=error,
            request_id=live.request.request_id,
            tenant=live.request.terms.tenant,
            prompt_tokens=len(live.request.prompt_ids),
            completion_tokens=len(live.emitted),
            finish_reason=outcome.value if isinstance(outcome, FinishReason) else "",
            attempts=live.attempt + 1,
            rounds=stats.rounds,
            speculative_rounds=stats.speculative_rounds,
            accepted_drafts=stats.accepted_drafts,
            late_rounds=stats.late_rounds,
        )


NO_TRACE = RequestTrace()
