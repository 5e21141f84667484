"""``paceline generate``: one answer, streamed."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from client.client import Generation
from client.commands.command import Command, parse_words
from client.commands.request_flags import RequestFlags, parse_ids
from client.completion import Completion
from client.figures import completion_figures, describe_completion
from client.fit import is_unicode
from client.request import Message, Prompt
from client.terminal import keep_bytes
from client.waiting import WaitNotice
from paceline.config import flag
from paceline.errors import ConfigError, PacelineError


@dataclass(frozen=True, slots=True)
class GenerateConfig(RequestFlags):
    """Stream the answer to one prompt; - as the prompt reads it from stdin."""

    raw: bool = flag(False, help="take the prompt as it stands, without the model's chat template")
    system: str = flag("", help="a system message before the prompt")
    token_ids: tuple[str, ...] = flag((), help="prompt as token ids, comma-separated, instead of text")
    json: bool = flag(False, help="one JSON object at the end instead of streamed text")
    stats: bool = flag(True, help="a line of figures on stderr at the end")
    prompt: tuple[str, ...] = ()

    def request_prompt(self) -> Prompt:
        """Text, chat or ids. Raises ConfigError where flags exclude each other or nothing is given."""
        words = " ".join(self.prompt)
        if self.token_ids and words:
            raise ConfigError("give a prompt or --token-ids, not both")
        if self.system and (self.raw or self.token_ids):
            flag_name = "--raw" if self.raw else "--token-ids"
            raise ConfigError(f"{flag_name} takes no template, so there is no place for --system")
        if self.token_ids:
            return parse_ids(self.token_ids, "token-ids")
        if words == "-":
            keep_bytes(sys.stdin)
            words = sys.stdin.read()
            if not words.strip():
                raise ConfigError("stdin holds no prompt: see whether what writes it has failed")
        elif not words:
            raise ConfigError("give a prompt: paceline generate 'Why is the sky blue?', or - to read it from stdin")
        if not is_unicode(words):
            raise ConfigError(f"the prompt {words[:40]!r} is no UTF-8: convert it first (iconv -t UTF-8)")
        if self.raw:
            return words
        system = [Message("system", self.system)] if self.system else []
        return [*system, Message("user", words)]


def main(argv: Sequence[str]) -> int:
    config = parse_words(GenerateConfig, argv, command="generate", words="prompt")
    prompt, sampling, options = config.request_prompt(), config.sampling(), config.options()
    with (
        config.client() as client,
        WaitNotice(client) as notice,
        client.generate(prompt, sampling=sampling, options=options) as answer,
    ):
        completion = _streamed(answer, notice, shows_text=not config.json)
    if config.json:
        print(json.dumps(_as_json(completion), ensure_ascii=False))
        return 0
    print()
    if config.stats:
        print(describe_completion(completion), file=sys.stderr)
    return 0


def _streamed(answer: Generation, notice: WaitNotice, *, shows_text: bool) -> Completion:
    """What breaks off in the midst of the text is told on a line of its own."""
    has_text = False
    try:
        for delta in answer:
            notice.heard()
            if shows_text:
                print(delta.text, end="", flush=True)
                has_text = has_text or bool(delta.text)
        return answer.result()
    except PacelineError:
        if has_text:
            print(flush=True)
        raise


def _as_json(completion: Completion) -> dict[str, object]:
    return {
        "request_id": completion.request_id,
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason.value,
        "usage": {"prompt_tokens": len(completion.prompt_ids), "completion_tokens": len(completion.token_ids)},
        **completion_figures(completion),
    }


COMMAND = Command("generate", "stream the answer to one prompt", main)
