"""All subcommands by name, and the choice among them."""

from __future__ import annotations

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
from client.terminal import say_error
from paceline.errors import ConfigError, PacelineError

COMMANDS = {
    module.COMMAND.name: module.COMMAND
    for module in (serve, generate, chat, bench, inflate, inspect, info, doctor, demo, fetch, train_head, api_key)
}


def run_command(words: Sequence[str]) -> int:
    """Runs ``paceline WORD...`` and returns its exit code; a typed error is a line on stderr."""
    try:
        return _run(words)
    except PacelineError as error:
        say_error(f"paceline {words[0]}", error)
        return error.exit_code


def _run(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if words else ConfigError.exit_code
    if words[0] == "--version":
        print(f"paceline {paceline.__version__}")
        return 0
    if words[0] not in COMMANDS:
        raise ConfigError("there is no such command; see paceline --help")
    return COMMANDS[words[0]].main(words[1:])


def _usage() -> str:
    lines = [f"  {command.name:10} {command.help}" for command in COMMANDS.values()]
    head = "usage: paceline COMMAND [FLAG...]\n\nEAGLE-3 speculative decoding as three services.\n"
    return "\n".join([head, *lines, "", "paceline COMMAND --help lists a command's flags."])
