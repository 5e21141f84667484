"""ChatSeam: what a chat template puts before a user's words, and between them and the assistant's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from paceline.chat_template import ChatTemplate
from paceline.errors import ConfigError, InvalidInputError

_USER, _ASSISTANT = "Zebra7Quartz", "Violet3Harbour"  # words that no template spells, and that none trims


@dataclass(frozen=True, slots=True)
class ChatSeam:
    """Token ids. A target that is given ``prefix`` writes a user's turn; after ``joint`` it writes the answer."""

    prefix: tuple[int, ...]
    joint: tuple[int, ...]  # the user's turn ended, the assistant's opened
    question_ends: tuple[int, ...]  # each ends a question that the target writes

    @classmethod
    def of(cls, template: ChatTemplate, tokenizer: Tokenizer, *, eos_ids: Sequence[int]) -> ChatSeam:
        """Raises ConfigError for a template that has no place for a user's words, or changes them."""
        before, after = _around(_render(template, [("user", _USER)]), _USER)
        joint = _continuation(tokenizer, after)
        if not joint:
            raise ConfigError("the chat template puts nothing after a user's words: it cannot tell where they end")
        special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        ends = dict.fromkeys([*eos_ids, *(joint[:1] if joint[0] in special else ())])
        return cls(tuple(encode(tokenizer, before)), tuple(joint), tuple(ends))


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """As the router encodes a rendered chat: the template spells what it wants at the start."""
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def answer_end(template: ChatTemplate, tokenizer: Tokenizer, eos_ids: Sequence[int]) -> int:
    """What follows an answer: the template's token after it where that is an end token, else the model's first one."""
    turns = [("user", _USER), ("assistant", _ASSISTANT), ("user", _USER)]
    try:
        _, after = _around(_render(template, turns), _ASSISTANT)
    except ConfigError:  # a template for one turn alone
        return eos_ids[0]
    following = _continuation(tokenizer, after)
    return following[0] if following and following[0] in eos_ids else eos_ids[0]


def _render(template: ChatTemplate, turns: Sequence[tuple[str, str]]) -> str:
    try:
        return template.render([{"role": role, "content": content} for role, content in turns])
    except InvalidInputError as error:
        raise ConfigError(f"the chat template refuses a plain question: {error}") from error


def _around(text: str, words: str) -> tuple[str, str]:
    if text.count(words) != 1:
        raise ConfigError(
            f"the chat template writes a turn's words {text.count(words)} times instead of once: pass --prompts or "
            "--conversations, whose text needs no place to continue from"
        )
    before, _, after = text.partition(words)
    return before, after


def _continuation(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of text where other text goes before it: some tokenizers put a space before what begins a text."""
    alone, joined = encode(tokenizer, _USER), encode(tokenizer, _USER + text)
    return joined[len(alone) :] if joined[: len(alone)] == alone else encode(tokenizer, text)
