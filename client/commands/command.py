"""What a subcommand is, and how it reads its flags."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from client.environment import program_environment
from paceline.config import build_parser, parse_flags
from paceline.config_file import with_config_file

ConfigT = TypeVar("ConfigT")


@dataclass(frozen=True, slots=True)
class Command:
    """``paceline NAME``. main takes the words after the name, returns the exit code, and may raise PacelineError."""

    name: str
    help: str
    main: Callable[[Sequence[str]], int]


def parse_words(cls: type[ConfigT], argv: Sequence[str], *, command: str, words: str) -> ConfigT:
    """Like parse_flags, with a field ``words`` (tuple[str, ...]) that takes what is no flag. Raises ConfigError."""
    parser = build_parser(cls, prog=f"paceline {command}")
    parser.add_argument(words, nargs="*")
    values = vars(parser.parse_intermixed_args(with_config_file(argv, parser)))
    return cls(**{**values, words: tuple(values[words])})


def parse(cls: type[ConfigT], argv: Sequence[str], *, command: str) -> ConfigT:
    """The flags of ``paceline COMMAND``. Raises ConfigError."""
    return parse_flags(cls, argv, prog=f"paceline {command}")


def become(command: str, module: str, argv: Sequence[str]) -> NoReturn:
    """``paceline COMMAND`` turns into MODULE.main, for what the client's room may not import."""
    start = [sys.executable, "-m", "client.start", f"paceline {command}", module]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.execve(sys.executable, [*start, *argv], program_environment())
