"""What peers say about themselves and their load, decoded once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class TargetLoad:
    """A target's load after a step, all routers together."""

    decoding_requests: int = 0  # past their prompt: what verify steps cost, and what a threshold counts
    prefilling_requests: int = 0
    draining: bool = False
    draft_links: Mapping[str, bool] | None = None  # whether the link to a draft works, by its address

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
