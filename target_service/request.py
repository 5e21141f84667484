"""Request: a submission as the decode loop sees it, checked and decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from paceline.admission import pages_to_reserve
from paceline.tree import MAX_NODES
from paceline.types import SamplingParams, SpeculationDecision


class RequestKey(NamedTuple):
    """A request's name on this target: the stream that it came by, and its number there."""

    stream: int
    request: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What a submission spends of its stream's credits."""

    slots: int
    pages: int


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One submission. emitted_ids are what an earlier attempt gave; params.max_tokens counts them too."""

    key: RequestKey
    prompt_ids: np.ndarray  # int32 [n], not empty
    emitted_ids: np.ndarray  # int32 [m]
    params: SamplingParams
    decision: SpeculationDecision
    cost: Cost
    request_id: str = ""  # the client's or the router's, for traces and logs
    traceparent: str = ""  # of the router's span; "": not traced


def cost_of(*, prompt_len: int, max_tokens: int, context_length: int, page_size: int) -> Cost:
    """The cost that router and target agree on, whatever becomes of the submission.

    Tokens past the context are not paid for, and any tree may be asked for later, so the largest counts.
    """
    pages = pages_to_reserve(
        prompt_len=prompt_len,
        max_tokens=min(max_tokens, context_length - prompt_len),
        max_nodes=MAX_NODES,
        page_size=page_size,
    )
    return Cost(1, pages)
