"""What the draft service counts, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from draft_service.engine_loop import Output
from draft_service.replies import SessionReply, SyncReply

_STEP_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class DraftMetrics:
    """Fed with every output of the engine."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._replies = Counter(
            "paceline_draft_replies",
            "Answers by kind (open, round, sync) and code.",
            ["kind", "code"],
            registry=registry,
        )
        self._rows = Counter("paceline_draft_rows", "Rows that the head took in.", ["kind"], registry=registry)
        self._trees = Counter("paceline_draft_trees", "Trees proposed.", registry=registry)
        self._nodes = Counter("paceline_draft_tree_nodes", "Nodes of these trees, roots included.", registry=registry)
        self._step = Histogram(
            "paceline_draft_step_seconds", "One batch of the head.", buckets=_STEP_SECONDS, registry=registry
        )
        self._sessions = Gauge("paceline_draft_sessions", "Sessions that are open.", registry=registry)
        self._free_pages = Gauge("paceline_draft_free_pages", "KV pages that no session holds.", registry=registry)

    def update(self, output: Output) -> None:
        self._sessions.set(output.load.num_sessions)
        self._free_pages.set(output.load.free_pages)
        for replies in output.replies.by_stream.values():
            for reply in replies:
                self._count(reply, "round" if reply.round else "open")
        for sync in output.replies.syncs:
            self._count(sync, "sync")
        record = output.record
        if record is None:
            return
        self._step.observe(record.stop_s - record.start_s)
        round_rows = sum(len(part.work.rows) for part in record.parts if part.reply is not None)
        self._rows.labels("round").inc(round_rows)
        self._rows.labels("bulk").inc(sum(len(part.work.rows) for part in record.parts) - round_rows)
        trees = [part.reply.tree for part in record.parts if part.reply is not None and part.reply.tree is not None]
        self._trees.inc(len(trees))
        self._nodes.inc(sum(tree.num_nodes for tree in trees))

    def _count(self, reply: SessionReply | SyncReply, kind: str) -> None:
        self._replies.labels(kind, reply.code.name.lower()).inc()
