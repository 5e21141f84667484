"""How long the requests of a simulation are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np


class Draw(NamedTuple):
    """One request: tokens, and its skill where that is known (see SimRequest)."""

    prompt_len: int
    output_len: int
    skill: float | None = None


class Requests(Protocol):
    """Where a simulation takes its requests from."""

    def draw(self, number: int, rng: np.random.Generator, *, share: float) -> Draw:
        """Of the request of that number. share: of the output that it is allowed."""


@dataclass(frozen=True, slots=True)
class RandomRequests:
    """Prompts and outputs around these means, within bounds."""

    prompt_tokens: float = 110.0
    output_tokens: float = 128.0
    min_output: int = 8

    def draw(self, number: int, rng: np.random.Generator, *, share: float) -> Draw:
        prompt = int(np.clip(rng.exponential(self.prompt_tokens), 8, 4 * self.prompt_tokens))
        output = rng.normal(self.output_tokens, self.output_tokens / 3) * share
        return Draw(prompt, int(np.clip(output, self.min_output, None)))


@dataclass(frozen=True, slots=True)
class KnownRequests:
    """Those of a measurement, in its order from first_number on; they come again."""

    prompt_tokens: Sequence[int]
    output_tokens: Sequence[int]  # that the model gives
    skills: Sequence[float]
    max_tokens: int
    first_number: int = 0

    def draw(self, number: int, rng: np.random.Generator, *, share: float) -> Draw:
        index = (self.first_number + number) % len(self.prompt_tokens)
        output_len = min(self.output_tokens[index], math.ceil(self.max_tokens * share))
        return Draw(self.prompt_tokens[index], output_len, self.skills[index])
