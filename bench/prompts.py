"""The prompts of a measurement: read from a file, filtered by length, spread over the file."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from paceline.errors import InvalidInputError

_ORDER_SEED = 0


def load_prompts(path: str) -> list[str]:
    """The field ``prompt`` of each line. Raises InvalidInputError naming file and line."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"--prompts {path}: {error}; name a file of JSON lines, each with a prompt") from error
    prompts = [_prompt(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise InvalidInputError(f"{path} holds no prompt; each line is a JSON object with the field prompt")
    return prompts


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


def _prompt(line: str, where: str) -> str:
    try:
        prompt = json.loads(line)["prompt"]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInputError(f"{where} is no JSON object with the field prompt: {error!r}") from error
    if not isinstance(prompt, str) or not prompt:
        raise InvalidInputError(f"{where}: prompt is {prompt!r}; it must be a text that is not empty")
    return prompt
