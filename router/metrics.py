"""The router's numbers: under vLLM's names where vLLM has them, under paceline's where not."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, ProcessCollector
from prometheus_client.registry import Collector

from paceline.errors import PacelineError
from paceline.loop_histogram import LoopHistogram
from paceline.types import FinishReason, SpeculationDecision
from router.live_request import LiveRequest

_LATENCY_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5)

_LENGTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)


class RouterMetrics:
    """All metrics of one router; process_cpu_seconds_total of the same registry is its CPU time."""

    def __init__(self, registry: CollectorRegistry) -> None:
        ProcessCollector(registry=registry)
        self._registry = registry
        self._prompt_tokens = self._counter("vllm:prompt_tokens_total", "Prompt tokens of requests submitted first")
        generated = self._counter("vllm:generation_tokens_total", "Tokens that targets generated")
        self.generation_tokens = generated
        self._successes = self._counter("vllm:request_success_total", "Requests that finished", "finished_reason")
        self._failures = self._counter("paceline_router_request_failures_total", "Requests that failed", "code")
        self._drafts = self._counter("vllm:spec_decode_num_drafts_total", "Speculative rounds")
        self._draft_tokens = self._counter("vllm:spec_decode_num_draft_tokens_total", "Proposed draft tokens")
        self._accepted = self._counter("vllm:spec_decode_num_accepted_tokens_total", "Accepted draft tokens")
        self._accepted_at = self._counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos_total", "Rounds that accepted a draft here", "position"
        )
        self._refusals = self._counter(
            "paceline_router_refusals_total", "Requests that came no further than the door or the queue's end", "code"
        )
        self.replays = self._counter("paceline_router_replays_total", "Attempts after the first", "reason")
        self._decisions = self._counter("paceline_router_decisions_total", "Decisions sent", "reason", "speculates")
        self._by_decision: dict[tuple[str, bool], Counter] = {}  # labels() takes longer than the rest
        self.first_token_s = self._histogram("vllm:time_to_first_token_seconds", "Arrival to first token")
        self.token_s = self._histogram(
            "vllm:inter_token_latency_seconds", "Time between messages to a client by their tokens", _TOKEN_BUCKETS_S
        )
        self._request_s = self._histogram("vllm:e2e_request_latency_seconds", "Arrival to last message")
        self.queue_s = self._histogram("vllm:request_queue_time_seconds", "Time in the queue before an attempt")
        self._prompt_len = self._histogram("vllm:request_prompt_tokens", "Prompt tokens of a request", _LENGTHS)
        self._output_len = self._histogram("vllm:request_generation_tokens", "Tokens given to a request", _LENGTHS)
        self._draft_rounds = self._counter("paceline_router_draft_rounds_total", "Rounds asked of a draft", "draft")
        self._late_rounds = self._counter(
            "paceline_router_draft_late_rounds_total", "Of these, those whose tree came too late", "draft"
        )

    def watch(self, collector: Collector) -> None:
        """Scrapes read it, too."""
        self._registry.register(collector)

    def count_refusal(self, error: PacelineError) -> None:
        """A request was not admitted."""
        self._refusals.labels(error.code.name).inc()

    def count_decision(self, decision: SpeculationDecision) -> None:
        """By the kind of its reason: what stands before a colon and numbers."""
        kind = decision.reason.partition(":")[0]
        speculates = any(rung.shape is not None for rung in decision.ladder)
        counter = self._by_decision.get((kind, speculates))
        if counter is None:
            counter = self._by_decision[kind, speculates] = self._decisions.labels(kind, str(speculates).lower())
        counter.inc()

    def count_start(self, live: LiveRequest, waited_s: float) -> None:
        """An attempt was submitted."""
        self.queue_s.observe(waited_s)
        if live.attempt == 0:
            self._prompt_tokens.inc(len(live.request.prompt_ids))

    def count_rounds(self, live: LiveRequest) -> None:
        """An attempt is over; of the first, the rounds and how many of them were late go to its draft."""
        if live.draft and live.attempt == 0:
            late = live.stats.late_rounds
            self._draft_rounds.labels(live.draft).inc(live.stats.speculative_rounds + late)
            self._late_rounds.labels(live.draft).inc(late)

    def count_end(self, live: LiveRequest, now: float) -> None:
        """Its servicer call is over."""
        outcome = live.outcome
        if isinstance(outcome, FinishReason):
            self._successes.labels(outcome.value).inc()
            self._request_s.observe(now - live.started_at)
            self._prompt_len.observe(len(live.request.prompt_ids))
            self._output_len.observe(len(live.emitted))
        elif outcome is None:
            self._failures.labels("CANCELLED").inc()
        else:
            self._failures.labels(outcome.code.name).inc()
        stats = live.stats
        self._drafts.inc(stats.speculative_rounds)
        self._draft_tokens.inc(stats.proposed_drafts)
        self._accepted.inc(stats.accepted_drafts)
        for position, rounds in enumerate(stats.accepted_by_depth):
            self._accepted_at.labels(str(position)).inc(rounds)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, bounds: tuple[float, ...] = _LATENCY_BUCKETS_S) -> LoopHistogram:
        return LoopHistogram(name, text, bounds=bounds, registry=self._registry)
