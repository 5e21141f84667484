"""Conversations of files, as token ids in the model's chat template."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from paceline.chat_template import ChatTemplate
from paceline.errors import InvalidInputError
from paceline.prompt_file import read_objects
from training.chat_seam import encode
from training.conversation import Conversation

_CONVERSATIONS = 'lines like {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hi"}]}'
_ROLES = {"human": "user", "gpt": "assistant"}  # as ShareGPT's files name them


@dataclass(frozen=True, slots=True)
class ChatText:
    """How a model's chats become tokens."""

    template: ChatTemplate
    tokenizer: Tokenizer

    def prompt_ids(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """With the assistant's turn opened, as the router makes them. Raises InvalidInputError."""
        return encode(self.tokenizer, self.template.render(messages))


def read_conversations(path: str, chat: ChatText, *, answer_end: int, max_tokens: int) -> Iterator[Conversation]:
    """The last answer of each line's messages is the answer; what goes before it is the prompt.

    Longer ones than max_tokens are cut. Raises InvalidInputError with file and line.
    """
    for number, (where, value) in enumerate(read_objects(path, form=_CONVERSATIONS)):
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
