"""What the draft service counts, for Prometheus."""

from __future__ import annotations

import itertools
from collections import Counter

import prometheus_client as prometheus
from prometheus_client import CollectorRegistry, Gauge, Histogram

from draft_service.engine_loop import StepNote
from draft_service.replies import Replies, SessionCode, TreeReplies

_STEP_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class DraftMetrics:
    """Fed with all that the engine gives out."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._replies = prometheus.Counter(
            "paceline_draft_replies",
            "Answers by kind (open, round, sync) and code.",
            ["kind", "code"],
            registry=registry,
        )
        self._rows = prometheus.Counter(
            "paceline_draft_rows", "Rows that the head took in.", ["kind"], registry=registry
        )
        self._trees = prometheus.Counter("paceline_draft_trees", "Trees proposed.", registry=registry)
        self._nodes = prometheus.Counter(
            "paceline_draft_tree_nodes", "Nodes of these trees, roots included.", registry=registry
        )
        self._step = Histogram(
            "paceline_draft_step_seconds", "One batch of the head.", buckets=_STEP_SECONDS, registry=registry
        )
        self._sessions = Gauge("paceline_draft_sessions", "Sessions that are open.", registry=registry)
        self._free_pages = Gauge("paceline_draft_free_pages", "KV pages that no session holds.", registry=registry)
        self._propose = Gauge(
            "paceline_draft_propose_seconds", "From a batch's arrival to its trees, smoothed.", registry=registry
        )

    def count_replies(self, replies: Replies) -> None:
        codes: Counter[tuple[bool, SessionCode]] = Counter()
        for reply in itertools.chain.from_iterable(replies.by_stream.values()):
            if isinstance(reply, TreeReplies):
                codes[True, SessionCode.OK] += len(reply)
            else:
                codes[reply.round > 0, reply.code] += 1
        for (is_round, code), count in codes.items():
            self._replies.labels("round" if is_round else "open", code.name.lower()).inc(count)
        for code, count in Counter(reply.code for reply in replies.syncs).items():
            self._replies.labels("sync", code.name.lower()).inc(count)

    def update(self, note: StepNote) -> None:
        self._sessions.set(note.load.num_sessions)
        self._free_pages.set(note.load.free_pages)
        self._propose.set(note.load.propose_ms / 1e3)
        record = note.record
        if record is None:
            return
        self._step.observe(record.stop_s - record.start_s)
        for part in record.parts:
            num_rows = part.batch.num_rows
            round_rows = int(num_rows[part.is_answered].sum())
            self._rows.labels("round").inc(round_rows)
            self._rows.labels("bulk").inc(int(num_rows.sum()) - round_rows)
            self._trees.inc(len(part.trees))
            self._nodes.inc(len(part.trees.trees.tokens))
