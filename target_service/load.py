"""Load: the target's figures after a step or a change between two, for routers and for metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DraftLoad:
    """One link, as the routers see it."""

    draft: str
    connected: bool
    num_sessions: int


@dataclass(frozen=True, slots=True)
class StepFigures:
    """What one step was and took; all 0 where none ran."""

    rows: int = 0
    prefill_tokens: int = 0
    step_ms: float = 0.0  # of one that was launched before the last was over: from that one's end
    forward_ms: float = 0.0
    tree_wait_ms: float = 0.0  # before the step, for trees alone
    context_tokens: int = 0  # committed, of the requests that verified
    verified_requests: int = 0
    drafted_requests: int = 0  # of them with more than one node
    tree_turnaround_ms: float = 0.0  # from the ask for a tree of the step until that was there, the longest


@dataclass(frozen=True, slots=True)
class Load:
    """Counts are for all routers together."""

    running_requests: int  # past their prompt
    prefilling_requests: int
    max_running_requests: int
    free_slots: int
    free_pages: int
    num_pages: int
    step: StepFigures
    mean_accepted_length: float  # over the last speculative rounds; 0 without one
    accepted_by_depth: list[float]
    draining: bool
    drafts: list[DraftLoad]
