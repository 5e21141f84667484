"""Crowd: what a choice of trees is made for, and the prompts that arrive beside it."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.step_table import Floats


@dataclass(frozen=True, slots=True)
class Prompts:
    """What arrives beside decoding: steps with prompt tokens a second, and their tokens."""

    steps_per_s: float = 0.0
    tokens_per_step: float = 0.0


@dataclass(frozen=True, slots=True)
class Crowd:
    """The requests of one target, by skill. share sums to 1; lengths are the acceptance model's at each skill."""

    share: Floats  # [levels]
    lengths: Floats  # [levels, shapes]
    context_tokens: float  # of one request
    num_drafts: int  # that the sessions are spread over
