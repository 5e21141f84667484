"""The prompts of a measurement: read from a file, filtered by length, spread over the file."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from paceline.errors import InvalidInputError

_ORDER_SEED = 0
_FORM = 'lines like {"prompt": "Why is the sky blue?"}'


def load_prompts(path: str) -> list[str]:
    """The field ``prompt`` of each line. Raises InvalidInputError naming file and line."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InvalidInputError(f"--prompts {path} cannot be read: {error.strerror}; name a file of {_FORM}") from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"--prompts {path} is no UTF-8 from byte {error.start} on; name a file of {_FORM}"
        ) from error
    prompts = [_prompt(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise InvalidInputError(f"--prompts {path} holds no prompt; name a file of {_FORM}")
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
        record = json.loads(line)
    except ValueError as error:
        raise InvalidInputError(f"{where} is no JSON; write {_FORM}") from error
    if not isinstance(record, dict) or "prompt" not in record:
        raise InvalidInputError(f"{where} has no prompt; write {_FORM}")
    prompt = record["prompt"]
    if not isinstance(prompt, str) or not prompt:
        raise InvalidInputError(f"{where}: prompt is {json.dumps(prompt)}; it must be a text that is not empty")
    return prompt
