"""Files of prompts: a JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import InvalidInputError

_FORM = 'lines like {"prompt": "Why is the sky blue?"}'


@dataclass(frozen=True, slots=True)
class PromptLine:
    """One line of a file of prompts."""

    text: str
    category: str  # "" where the line names none


def read_prompts(path: str) -> list[PromptLine]:
    """The fields prompt and, where there is one, category of each line. Raises InvalidInputError with file and line."""
    lines = [_prompt(where, value) for where, value in read_objects(path, form=_FORM)]
    if not lines:
        raise InvalidInputError(f"{path} holds no prompt; name a file of {_FORM}")
    return lines


def read_objects(path: str, *, form: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, object) of each line that is not blank. form: what the file should hold, for the errors.

    Raises InvalidInputError with file and line.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {error.strerror}; name a file of {form}") from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{path} is no UTF-8 from byte {error.start} on; name a file of {form}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            value = json.loads(line)
        except ValueError as error:
            raise InvalidInputError(f"{where} is no JSON; write {form}") from error
        if not isinstance(value, dict):
            raise InvalidInputError(f"{where} is no JSON object; write {form}")
        yield where, value


def _prompt(where: str, value: dict[str, Any]) -> PromptLine:
    if "prompt" not in value:
        raise InvalidInputError(f"{where} has no prompt; write {_FORM}")
    text = value["prompt"]
    if not isinstance(text, str) or not text.strip():
        raise InvalidInputError(f"{where}: prompt is {json.dumps(text)}; it must be a text that is not empty")
    return PromptLine(text, str(value.get("category", "")))
