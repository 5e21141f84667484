"""The prompts of a measurement: read from a file, filtered by length, spread over the file."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from paceline.errors import InvalidInputError
from paceline.prompt_file import read_prompts

_ORDER_SEED = 0


def load_prompts(path: str) -> list[str]:
    """Of each line. Raises InvalidInputError naming file and line."""
    return [line.text for line in read_prompts(path)]


def short_enough(prompts: Sequence[str], length: Callable[[str], int], *, limit: int) -> list[str]:
    """Those of at most limit tokens. Raises InvalidInputError where there is none."""
    kept = [prompt for prompt in prompts if length(prompt) <= limit]
    if not kept:
        raise InvalidInputError(f"none of {len(prompts)} prompts has at most {limit} tokens; raise --max-prompt-tokens")
    return kept


def spread(prompts: Sequence[str], count: int | None) -> list[str]:
    """count of them at even distances; all where count is None or no smaller than their number."""
    if count is None or count >= len(prompts):
        return list(prompts)
    return [prompts[i * len(prompts) // count] for i in range(count)]


def shuffled(prompts: Sequence[str]) -> list[str]:
    """The same order each time, so that a run of a few takes some of every kind."""
    return random.Random(_ORDER_SEED).sample(prompts, len(prompts))
