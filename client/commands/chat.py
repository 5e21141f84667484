"""``paceline chat``: a conversation in the terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import sys
import termios
from collections.abc import Sequence
from dataclasses import dataclass

from client.client import PacelineClient
from client.commands.command import Command, parse
from client.commands.request_flags import RequestFlags
from client.figures import describe_completion
from client.fit import is_unicode
from client.request import Message
from client.terminal import keep_bytes
from client.waiting import WaitNotice
from paceline.config import flag
from paceline.errors import InvalidInputError, PacelineError

_HELP = "/reset starts over, /exit or Ctrl-D leaves, Ctrl-C stops an answer or leaves"


@dataclass(frozen=True, slots=True)
class ChatConfig(RequestFlags):
    """Talk with the model; it sees the whole conversation."""

    max_tokens: int | None = flag(512, help="new tokens of an answer at most")
    system: str = flag("", help="a system message before the conversation")
    stats: bool = flag(False, help="a line of figures on stderr after each answer")


def main(argv: Sequence[str]) -> int:
    config = parse(ChatConfig, argv, command="chat")
    opening = [Message("system", config.system)] if config.system else []
    config.sampling(), config.options()
    history = list(opening)
    keep_bytes(sys.stdin)
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives input() its line editing
    with config.client() as client:
        print(f"{client.info().info.model_name}: {_HELP}", file=sys.stderr)
        while (line := _read_line()) is not None:
            if line in ("/exit", "/quit"):
                break
            if line == "/reset":
                history = list(opening)
            elif line.startswith("/"):
                print(_HELP, file=sys.stderr)
            elif not is_unicode(line):
                print("this line is no UTF-8 and was left out: say it again in UTF-8", file=sys.stderr)
            elif line:
                history += _exchange(client, config, [*history, Message("user", line)])
    return 0


def _exchange(client: PacelineClient, config: ChatConfig, messages: list[Message]) -> list[Message]:
    """Streams the answer; returns the question and what came of the answer, or nothing where it failed, or was stopped
    before its first word. Raises PacelineError where nobody can ask again.
    """
    text = ""
    try:
        with (
            WaitNotice(client) as notice,
            client.generate(messages, sampling=config.sampling(), options=config.options()) as answer,
        ):
            for delta in answer:
                notice.heard()
                text += delta.text
                print(delta.text, end="", flush=True)
            print()
            if config.stats:
                print(describe_completion(answer.result()), file=sys.stderr)
    except KeyboardInterrupt:
        print(" [stopped]" if text else "[stopped]")
        if not text:
            return []
    except PacelineError as error:
        if text:
            print(flush=True)
        is_refused = isinstance(error, InvalidInputError)  # most often the conversation outgrew the context
        if not is_refused and not sys.stdin.isatty():
            raise
        todo = "/reset starts over" if is_refused else "this question and its answer are forgotten: ask again"
        print(f"{error}\n{todo}", file=sys.stderr)
        return []
    return [messages[-1], Message("assistant", text)]


def _read_line() -> str | None:
    """None at the end of the input."""
    is_asked = sys.stdin.isatty()
    if is_asked and _has_ended(sys.stdin.fileno()):
        print(file=sys.stderr)
        return None
    try:
        return input("> " if is_asked else "").strip()
    except EOFError:
        if is_asked:
            print(file=sys.stderr)
        return None


def _has_ended(terminal: int) -> bool:
    """Whether Ctrl-D was typed on its own before this prompt; takes it. Readline, which takes the terminal over, would
    lose it."""
    is_readable = bool(select.select([terminal], [], [], 0)[0])
    num_bytes = int.from_bytes(fcntl.ioctl(terminal, termios.FIONREAD, bytes(4)), sys.byteorder)
    return is_readable and num_bytes == 0 and not os.read(terminal, 1)


COMMAND = Command("chat", "talk with the model in the terminal", main)
