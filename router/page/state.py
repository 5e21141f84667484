"""What the page shows of the router: its fleet, its load, its decisions and its requests, as JSON values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry

from router.dispatcher import Dispatcher
from router.draft_link import DraftLink
from router.live_request import LiveRequest
from router.target_link import TargetLink

SESSION_COLUMNS = (
    "request_id",
    "tenant",
    "state",
    "target",
    "draft",
    "tokens",
    "max_tokens",
    "prompt",
    "attempt",
    "age_s",
    "reason",
)
# Totals since the start, by their names in the metrics; labelled ones become a list of labels and value.
_TOTALS = (
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
    "vllm:request_success",
    "vllm:spec_decode_num_drafts",
    "vllm:spec_decode_num_draft_tokens",
    "vllm:spec_decode_num_accepted_tokens",
    "vllm:spec_decode_num_accepted_tokens_per_pos",
    "paceline_router_request_failures",
    "paceline_router_replays",
    "paceline_router_decisions",
)


def fleet_state(dispatcher: Dispatcher) -> dict[str, Any]:
    """Targets and drafts, the queue, and the decisions in force by reason and shape."""
    fleet, queue = dispatcher.fleet, dispatcher.queue
    return {
        "draining": dispatcher.is_draining,
        "live": dispatcher.num_live,
        "waiting": len(queue),
        "max_waiting": queue.max_len,
        "targets": [_target(link) for link in fleet.targets],
        "drafts": [
            _draft(link, mismatch=fleet.draft_mismatch(link), requests=fleet.requests_by_draft[link.address])
            for link in fleet.drafts
        ],
        "in_force": _in_force(dispatcher.lives),
    }


def totals(registry: CollectorRegistry) -> dict[str, list[list[Any]]]:
    """Of each counter, its samples: labels, then the value. Walks the registry, which takes about a millisecond."""
    found: dict[str, list[list[Any]]] = {}
    for family in registry.collect():
        if family.name in _TOTALS:
            samples = (sample for sample in family.samples if sample.name.endswith("_total"))
            found[family.name] = [[*sample.labels.values(), sample.value] for sample in samples]
    return found


def session_rows(lives: Iterable[LiveRequest], *, now: float, limit: int) -> dict[str, Any]:
    """The oldest requests, at most limit, a row each. now: on the loop's clock."""
    oldest = sorted(lives, key=lambda live: live.started_at)[:limit]
    return {"columns": SESSION_COLUMNS, "rows": [_session(live, now) for live in oldest]}


def _session(live: LiveRequest, now: float) -> list[Any]:
    flight = live.flight
    state = "ended" if live.outcome is not None else "waiting" if flight is None else "running"
    if state == "running" and not live.emitted:
        state = "prefill"
    return [
        live.request.request_id,
        live.request.terms.tenant,
        state,
        "" if flight is None else flight.link.address,
        live.draft,
        len(live.emitted),
        live.max_tokens,
        len(live.request.prompt_ids),
        live.attempt,
        round(now - live.started_at, 2),
        "" if flight is None else flight.decision.reason,
    ]


def _target(link: TargetLink) -> dict[str, Any]:
    load, info = link.load, link.info
    return {
        "address": link.address,
        "ready": link.ready,
        "message": link.why_not_ready,
        "requests": link.num_flights,
        "decoding": load.decoding_requests,
        "prefilling": load.prefilling_requests,
        "max_running": 0 if info is None else info.max_running_requests,
        "num_pages": 0 if info is None else info.num_pages,
        "free_slots": link.ledger.free_slots,
        "free_pages": link.ledger.free_pages,
        "rows": load.rows,
        "step_ms": load.step_ms,
        "forward_ms": load.forward_ms,
        "tree_wait_ms": load.tree_wait_ms,
        "mean_accepted_length": load.mean_accepted_length,
        "accepted_by_depth": load.accepted_by_depth,
        "draft_links": dict(load.draft_links or {}),
    }


def _draft(link: DraftLink, *, mismatch: str, requests: int) -> dict[str, Any]:
    load = link.load
    return {
        "address": link.address,
        "ready": link.ready and not mismatch,
        "message": link.message or mismatch or ("draining" if load.draining else ""),
        "requests": requests,
        "sessions": load.num_sessions,
        "max_sessions": load.max_sessions,
        "free_pages": load.free_pages,
        "num_pages": load.num_pages,
        "busy": load.busy,
        "propose_ms": load.propose_ms,
    }


def _in_force(lives: Iterable[LiveRequest]) -> list[list[Any]]:
    """Reason, the ladder in words, and how many requests have them; the most frequent first."""
    counts = Counter(live.flight.decision for live in lives if live.flight is not None)
    by_words: Counter[tuple[str, str]] = Counter()
    for decision, count in counts.items():
        rungs = [
            f"{rung.shape.num_steps},{rung.shape.eagle_topk},{rung.shape.num_draft_tokens}" if rung.shape else "off"
            for rung in decision.ladder
        ]
        bounds = [f" to {rung.max_running_requests}" if rung.max_running_requests else "" for rung in decision.ladder]
        ladder = "; ".join(rung + bound for rung, bound in zip(rungs, bounds, strict=True)) or "off"
        by_words[decision.reason, ladder] += count
    return [[reason, ladder, count] for (reason, ladder), count in by_words.most_common(20)]
