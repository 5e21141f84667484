"""Flags from a file: ``--config PATH``, which every program takes, read into flags that come before the others."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError

_EXPECTED = "name a TOML file, or a folder with a file a flag"
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")


def with_config_file(argv: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """argv without --config and with what its file says in front, so that a flag on the command line wins.

    PATH is a TOML file of ``flag-name = value``, or a folder with a file a flag that holds its value, as a mounted
    ConfigMap is. Raises ConfigError for a file that cannot be read and a name that is no flag of the parser's.
    """
    source, rest = split_config(argv)
    return rest if source is None else [*flags_of(read_values(source), parser, source=source), *rest]


def split_config(argv: Sequence[str]) -> tuple[Path | None, list[str]]:
    """What --config names in argv, None where it is not there, and argv without it. Raises ConfigError."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    finder.add_argument("--config")
    try:
        found, rest = finder.parse_known_args(list(argv))
    except argparse.ArgumentError as error:
        raise ConfigError(f"{error}; {_EXPECTED}") from error
    if found.config == "":
        raise ConfigError(f"--config is empty; {_EXPECTED}")
    return (None if found.config is None else Path(found.config)), rest


def flag_of(key: str) -> str:
    """The flag that a file means by a key, and a config by its field."""
    return "--" + key.replace("_", "-")


def read_values(path: Path) -> dict[str, Any]:
    """What the file or folder says, by flag name without dashes in front. Raises ConfigError."""
    try:
        if path.is_dir():
            # Kubernetes keeps the versions of a mounted ConfigMap in entries that begin with two dots.
            files = [entry for entry in sorted(path.iterdir()) if not entry.name.startswith(".") and entry.is_file()]
            return {file.name: _text(file).strip() for file in files}
        return tomllib.loads(_text(path))
    except FileNotFoundError as error:
        raise ConfigError(f"--config: {path} is not there; {_EXPECTED}") from error
    except OSError as error:
        why = f"{error.strerror}; let this user read it, or {_EXPECTED}"
        raise ConfigError(f"--config: {error.filename or path} cannot be read: {why}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"--config: {path} is no TOML: {error}") from error


def flags_of(values: Mapping[str, Any], parser: argparse.ArgumentParser, *, source: Path) -> list[str]:
    """The values as words of a command line. Raises ConfigError, naming source and key."""
    known = {option: action for action in parser._actions for option in action.option_strings}
    words = []
    for key, value in values.items():
        name = flag_of(key)
        action = known.get(name)
        if action is None or action.dest == "help":
            raise ConfigError(f"{source}: {key!r} is no flag of {parser.prog}; see {parser.prog} --help")
        if isinstance(action, argparse.BooleanOptionalAction):
            words.append(name if _truth(value, f"{source}: {key}") else f"--no-{name[2:]}")
        else:
            words.append(f"{name}={_word(value, f'{source}: {key}')}")
    return words


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"--config: {file} is no text in UTF-8 ({error.reason}); {_EXPECTED}") from error


def _truth(value: Any, where: str) -> bool:
    text = str(value).lower()
    if text not in (*_TRUE, *_FALSE):
        raise ConfigError(f"{where} is {value!r}; it must be true or false")
    return text in _TRUE


def _word(value: Any, where: str) -> str:
    if isinstance(value, list):
        return ",".join(_word(part, where) for part in value)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(f"{where} is {value!r}; it must be a text, a number or a list of them")
    return str(value)
