"""Prometheus figures of the target: vLLM's names where vLLM has one, paceline_ names for the rest."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterable

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from target_service.draft_session import TreeVerdict
from target_service.events import LossReason, SessionCode
from target_service.load import Load, StepFigures

_STEP_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)


class TargetMetrics:
    """Numbers only; updated by the engine thread, read by the metrics server."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, registry=registry)

        self._running = gauge("vllm:num_requests_running", "Requests that run, in prefill or decode.")
        self._kv_usage = gauge("vllm:kv_cache_usage_perc", "Share of the KV pages that are held, 0 to 1.")
        self._prompt_tokens = counter("vllm:prompt_tokens", "Prompt tokens computed.")
        self._generation_tokens = counter("vllm:generation_tokens", "Tokens emitted.")
        self._finished = counter("vllm:request_success", "Requests that ended.", ("finished_reason",))
        self._preemptions = counter("vllm:num_preemptions", "Running requests that went back to their router.")
        self._drafts = counter("vllm:spec_decode_num_drafts", "Verify rounds with more than one node.")
        self._draft_tokens = counter("vllm:spec_decode_num_draft_tokens", "Drafts verified, roots left out.")
        self._accepted = counter("vllm:spec_decode_num_accepted_tokens", "Drafts accepted.")
        self._accepted_per_pos = counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos", "Rounds that accepted a draft at this depth.", ("position",)
        )
        self._rounds = counter("paceline_target_rounds", "Verify rounds, one-node rounds included.")
        self._late_rounds = counter("paceline_target_late_rounds", "Rounds whose tree did not come in time.")
        self._overlapped = counter(
            "paceline_target_overlapped_steps",
            "Steps beside which another was under way: rounds in halves; plain steps that run ahead are not counted.",
        )
        trees = counter("paceline_target_trees", "Trees that arrived, by what became of them.", ("verdict",))
        self._trees = {verdict: trees.labels(verdict.value) for verdict in TreeVerdict}
        self._losses = counter("paceline_target_draft_losses", "Connections to drafts lost.", ("draft", "reason"))
        self._refused = counter("paceline_target_sessions_refused", "Sessions that a draft refused or lost.", ("code",))
        self._returns = counter("paceline_target_returns", "Submissions that went back to their router.", ("reason",))
        self._free_slots = gauge("paceline_target_free_slots", "Sequence slots that no request holds.")
        self._free_pages = gauge("paceline_target_free_pages", "KV pages that no request holds.")
        self._sync_lag = gauge("paceline_target_sync_lag_rows", "Committed rows that drafts have not acknowledged.")

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(name, text, buckets=_STEP_SECONDS, registry=registry)

        self._step_seconds = histogram("paceline_target_step_seconds", "One step as a whole.")
        self._tree_wait = histogram("paceline_target_tree_wait_seconds", "Waits for trees alone, before a step.")
        self._lateness = histogram("paceline_target_tree_lateness_seconds", "Late trees, from their deadline on.")

    def load(self, load: Load) -> None:
        """Whenever it changed."""
        self._running.set(load.running_requests + load.prefilling_requests)
        self._kv_usage.set(1 - load.free_pages / load.num_pages)
        self._free_slots.set(load.free_slots)
        self._free_pages.set(load.free_pages)

    def step(self, figures: StepFigures, *, emitted_tokens: int) -> None:
        self._prompt_tokens.inc(figures.prefill_tokens)
        self._generation_tokens.inc(emitted_tokens)
        self._step_seconds.observe(figures.step_ms / 1e3)
        if figures.tree_wait_ms:
            self._tree_wait.observe(figures.tree_wait_ms / 1e3)

    def overlapped_step(self) -> None:
        """The step had another beside it."""
        self._overlapped.inc()

    def rounds(self, num_nodes: np.ndarray, accept_length: np.ndarray, *, num_late: int) -> None:
        """The verify rounds of one step: int [b] each."""
        self._rounds.inc(len(num_nodes))
        if num_late:
            self._late_rounds.inc(num_late)
        is_speculative = num_nodes > 1
        num_drafts = int(np.count_nonzero(is_speculative))
        if num_drafts == 0:
            return
        accepted = accept_length[is_speculative]
        self._drafts.inc(num_drafts)
        self._draft_tokens.inc(int(num_nodes.sum()) - len(num_nodes))
        self._accepted.inc(int(accepted.sum()))
        at_least = np.bincount(accepted)[::-1].cumsum()[::-1]
        for depth, count in enumerate(at_least[1:].tolist()):
            self._accepted_per_pos.labels(str(depth)).inc(count)

    def finished(self, reason: str) -> None:
        self._finished.labels(reason).inc()

    def returned(self, reason: str, *, was_running: bool) -> None:
        self._returns.labels(reason).inc()
        if was_running:
            self._preemptions.inc()

    def trees(self, verdicts: Iterable[TreeVerdict]) -> None:
        for verdict, count in Counts(verdicts).items():
            self._trees[verdict].inc(count)

    def late_tree(self, late_s: float) -> None:
        """An awaited tree came that long after its deadline."""
        self._lateness.observe(late_s)

    def sync_lag(self, num_rows: int) -> None:
        self._sync_lag.set(num_rows)

    def draft_lost(self, draft: str, reason: LossReason) -> None:
        self._losses.labels(draft, reason.value).inc()

    def session_refused(self, code: SessionCode) -> None:
        self._refused.labels(code.value).inc()
