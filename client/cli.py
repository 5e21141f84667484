"""The ``paceline`` command. Exit codes are those of the typed errors; docs/usage.md lists them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import paceline
from client.commands import (
    api_key,
    bench,
    chat,
    demo,
    doctor,
    fetch,
    generate,
    inflate,
    info,
    inspect,
    serve,
    train_head,
)
from paceline.errors import ConfigError, PacelineError

_INTERRUPTED = 130
_COMMANDS = {
    module.COMMAND.name: module.COMMAND
    for module in (serve, generate, chat, bench, inflate, inspect, info, doctor, demo, fetch, train_head, api_key)
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand and returns its exit code; errors that a user can mend are one line on stderr."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(words)
    except PacelineError as error:
        print(f"paceline {words[0]}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone; nothing may be written at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if words else ConfigError.exit_code
    if words[0] == "--version":
        print(f"paceline {paceline.__version__}")
        return 0
    if words[0] not in _COMMANDS:
        raise ConfigError("there is no such command; see paceline --help")
    return _COMMANDS[words[0]].main(words[1:])


def _usage() -> str:
    lines = [f"  {command.name:10} {command.help}" for command in _COMMANDS.values()]
    head = "usage: paceline COMMAND [FLAG...]\n\nEAGLE-3 speculative decoding as three services.\n"
    return "\n".join([head, *lines, "", "paceline COMMAND --help lists a command's flags."])


if __name__ == "__main__":
    sys.exit(main())
