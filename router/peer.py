"""What peers say about themselves and their load, decoded once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.types import TreeShape
from router.placement import Head


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """The part of a ServiceInfo that the router acts on."""

    service: str
    incarnation: int
    model_fingerprint: str
    tokenizer_fingerprint: str
    head: Head
    vocab_size: int
    context_length: int
    page_size: int
    num_pages: int
    max_running_requests: int
    eos_token_ids: frozenset[int]
    step_times: tuple[tuple[int, float], ...] = ()  # of a target's warm-up: rows and ms
    overlaps_rounds: bool = False  # of a target: it verifies one half's trees while the other half's are drafted
    propose_times: tuple[tuple[TreeShape, int, float], ...] = ()  # of a draft's: shape, sessions and ms


@dataclass(frozen=True, slots=True)
class TargetLoad:
    """A target's load after a step, all routers together."""

    decoding_requests: int = 0  # past their prompt: what verify steps cost, and what a threshold counts
    prefilling_requests: int = 0
    draining: bool = False
    draft_links: Mapping[str, bool] | None = None  # whether the link to a draft works, by its address
    rows: int = 0  # of the step; this and what follows is 0 in a report of a change between two steps
    prefill_tokens: int = 0  # of them, prompt tokens
    step_ms: float = 0.0  # the step as a whole
    forward_ms: float = 0.0  # its forward
    tree_wait_ms: float = 0.0  # before it, for trees alone
    context_tokens: int = 0  # committed, of the requests that verified in it
    verified_requests: int = 0
    drafted_requests: int = 0  # of them with more than one node
    tree_turnaround_ms: float = 0.0  # from the ask for a tree of the step until that was there, the longest
    mean_accepted_length: float = 0.0  # over the last speculative rounds, the extra token included
    accepted_by_depth: tuple[float, ...] = ()  # share of these rounds that accepted at least 1, 2, ... drafts

    @property
    def num_requests(self) -> int:
        return self.decoding_requests + self.prefilling_requests


@dataclass(frozen=True, slots=True)
class DraftLoad:
    """A draft's load, all targets together."""

    num_sessions: int = 0
    max_sessions: int = 0
    busy: float = 0.0
    draining: bool = False
    incarnation: int = 0
    free_pages: int = 0
    num_pages: int = 0  # of its pool; 0: it did not say
    propose_ms: float = 0.0  # from a batch's arrival to its trees, smoothed

    @property
    def page_share(self) -> float:
        """Of its pages, those in use."""
        return 1 - self.free_pages / self.num_pages if self.num_pages else 0.0
