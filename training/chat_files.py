"""Prompts and conversations of files, as token ids in the model's chat template."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from paceline.chat_template import ChatTemplate
from paceline.errors import InvalidInputError
from training.chat_seam import encode
from training.conversation import Conversation

_ROLES = {"human": "user", "gpt": "assistant"}  # as ShareGPT's files name them


@dataclass(frozen=True, slots=True)
class ChatText:
    """How a model's chats become tokens."""

    template: ChatTemplate
    tokenizer: Tokenizer

    def prompt_ids(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """With the assistant's turn opened, as the router makes them. Raises InvalidInputError."""
        return encode(self.tokenizer, self.template.render(messages))


@dataclass(frozen=True, slots=True)
class PromptLine:
    """One line of a file of prompts."""

    text: str
    category: str  # "" where the line names none


def read_prompts(path: str) -> list[PromptLine]:
    """The fields prompt and, where there is one, category of each line. Raises InvalidInputError with file and line."""
    lines = []
    for where, value in _objects(path):
        text, category = value.get("prompt"), value.get("category", "")
        if not isinstance(text, str) or not text.strip():
            raise InvalidInputError(f"{where}: prompt is {text!r}; it must be a text that is not empty")
        lines.append(PromptLine(text, str(category)))
    if not lines:
        raise InvalidInputError(f"{path} holds no prompt; each line is a JSON object with the field prompt")
    return lines


def read_conversations(path: str, chat: ChatText, *, answer_end: int, max_tokens: int) -> Iterator[Conversation]:
    """The last answer of each line's messages is the answer; what goes before it is the prompt.

    Longer ones than max_tokens are cut. Raises InvalidInputError with file and line.
    """
    for number, (where, value) in enumerate(_objects(path)):
        messages = _messages(value, where)
        while messages and messages[-1]["role"] != "assistant":
            messages.pop()
        if len(messages) < 2:
            raise InvalidInputError(f"{where} has no question that an assistant answers")
        prompt = chat.prompt_ids(messages[:-1])
        answer = encode(chat.tokenizer, messages[-1]["content"])
        tokens = np.array([*prompt, *answer, answer_end], np.int32)
        start = len(prompt)
        yield Conversation(number, tokens[:max_tokens], start, start, start, -1.0, len(tokens) <= max_tokens)


def _messages(value: dict[str, Any], where: str) -> list[dict[str, str]]:
    turns: Any = value.get("messages", value.get("conversations"))
    try:
        return [
            {"role": _ROLES.get(role, role), "content": content}
            for role, content in (
                (turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))) for turn in turns
            )
            if _is_text(role) and _is_text(content)
        ]
    except (TypeError, AttributeError) as error:
        raise InvalidInputError(f"{where}: messages is {turns!r:.80}; it must be a list of role and content") from error


def _is_text(value: object) -> bool:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return True


def _objects(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, object) of each line that is not blank."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path}: {error}; name a file of JSON lines") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            value = json.loads(line)
        except ValueError as error:
            raise InvalidInputError(f"{where} is no JSON: {error}") from error
        if not isinstance(value, dict):
            raise InvalidInputError(f"{where} is no JSON object")
        yield where, value
