"""RequestRecorder: what metrics, traces and the log are told of each request at the servicer."""

from __future__ import annotations

import logging
from collections.abc import Callable

from paceline.errors import PacelineError
from paceline.tracing import NO_SPAN, Span, Tracer
from paceline.types import FinishReason
from router.live_request import LiveRequest
from router.metrics import RouterMetrics
from router.request_trace import NO_TRACE, RequestTrace

_log = logging.getLogger("router.requests")


class RequestRecorder:
    """Event loop only. log_requests: a line for each request at its end, with its id."""

    def __init__(
        self, metrics: RouterMetrics, tracer: Tracer, *, log_requests: bool, clock: Callable[[], float]
    ) -> None:
        self._metrics = metrics
        self._tracer = tracer
        self._log_requests = log_requests
        self._clock = clock

    @property
    def traces(self) -> bool:
        """Whether ``arrived`` wants to know the caller's traceparent."""
        return self._tracer.is_on

    def arrived(self, traceparent: str) -> Span:
        """A call has come; traceparent: its caller's, or ""."""
        return self._tracer.begin("Generate", parent=traceparent)

    def refused(self, span: Span, error: PacelineError, *, request_id: str) -> None:
        """It was not admitted."""
        self._metrics.count_refusal(error)
        span.end(error=str(error), request_id=request_id)
        if self._log_requests:
            _log.info("request refused: %s", error, extra={"request_id": request_id, "code": error.code.name})

    def trace(self, span: Span) -> RequestTrace:
        """Of a request that is about to be admitted."""
        return NO_TRACE if span is NO_SPAN else RequestTrace(span)

    def sent(self, live: LiveRequest, num_tokens: int, sent_at: float) -> float:
        """What live gave last goes to its client; returns the time. sent_at: of the message before it, 0 for none."""
        now = live.taken_at
        if num_tokens and sent_at:
            self._metrics.token_s.observe((now - sent_at) / num_tokens)
        elif num_tokens:
            self._metrics.first_token_s.observe(now - live.started_at)
            live.trace.first_token()
        return now

    def ended(self, live: LiveRequest) -> None:
        """Its call is over."""
        live.trace.end(live)
        if self._log_requests:
            _log.info("request ended", extra=self._facts(live))

    def _facts(self, live: LiveRequest) -> dict[str, object]:
        stats = live.stats
        facts: dict[str, object] = {
            "request_id": live.request.request_id,
            "tenant": live.request.terms.tenant,
            "outcome": _word(live.outcome),
            "prompt_tokens": len(live.request.prompt_ids),
            "completion_tokens": len(live.emitted),
            "seconds": round(self._clock() - live.started_at, 4),
            "attempts": live.attempt + 1,
            "speculative_rounds": stats.speculative_rounds,
            "accepted_drafts": stats.accepted_drafts,
            "late_rounds": stats.late_rounds,
        }
        if live.trace.trace_id:
            facts["trace_id"] = live.trace.trace_id
        return facts


def _word(outcome: FinishReason | PacelineError | None) -> str:
    if outcome is None:
        return "cancelled"
    return outcome.value if isinstance(outcome, FinishReason) else outcome.code.name
