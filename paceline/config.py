"""One frozen dataclass a service is its configuration: flags, defaults, help and checks in one place."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from paceline.config_file import flag_of, with_config_file
from paceline.errors import ConfigError, PacelineError

ConfigT = TypeVar("ConfigT")

_CONFIG_HELP = "--config PATH reads flags from a TOML file, or from a folder with a file a flag; those here win."
_METAVARS = {int: "N", float: "X", str: "TEXT"}


def flag(default: Any = dataclasses.MISSING, *, help: str, choices: Sequence[str] = ()) -> Any:
    """A dataclass field that is a command-line flag: field_name becomes --field-name.

    Types: str, int, float, bool (--x / --no-x), and tuple[str, ...] (comma-separated), each also "| None".
    """
    metadata = {"help": help, "choices": tuple(choices)}
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def parse_flags(cls: type[ConfigT], argv: Sequence[str], *, prog: str) -> ConfigT:
    """Parses argv and the file that --config names in it into cls; --help prints and exits 0.

    Raises ConfigError for an unknown flag or a bad value.
    """
    parser = build_parser(cls, prog=prog)
    return cls(**parse_values(parser, argv))


def parse_values(parser: argparse.ArgumentParser, argv: Sequence[str]) -> dict[str, Any]:
    """What the words and their --config file say, by destination; --help prints and exits 0. Raises ConfigError."""
    return vars(parser.parse_args(with_config_file(argv, parser)))


def build_parser(cls: type[Any], *, prog: str) -> argparse.ArgumentParser:
    """The parser of a configuration class, for parse_flags and for programs that add to it.

    prog: as it is typed, ``paceline COMMAND``; or the name of a module, which is typed after ``python -m``. Its help
    speaks of --config: use it by ``parse_values``.
    """
    description = (cls.__doc__ or "").strip().splitlines()[0]
    typed = prog if " " in prog else f"python -m {prog}"
    parser = _Parser(prog=typed, description=description, epilog=_CONFIG_HELP, allow_abbrev=False)
    add_flags(parser, cls)
    return parser


def add_flags(parser: argparse._ActionsContainer, cls: type[Any]) -> None:
    """Adds the class's flags to a parser, or to a group of one."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if "help" not in field.metadata:
            continue
        name = flag_of(field.name)
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        options: dict[str, Any] = {"dest": field.name, "required": required}
        if not required:
            options["default"] = field.default
        shown = "" if required or field.default in (None, "", ()) else f" (default: {_show(field.default)})"
        options["help"] = (field.metadata["help"] + shown).replace("%", "%%")
        kind = _plain_type(hints[field.name])
        if kind is bool:
            options["action"] = argparse.BooleanOptionalAction
        elif typing.get_origin(kind) is tuple:
            options["type"] = _comma_separated
            options["metavar"] = "A,B,..."
        else:
            options["type"] = kind
            if field.metadata["choices"]:
                options["choices"] = field.metadata["choices"]
            else:
                options["metavar"] = _METAVARS.get(kind)
        parser.add_argument(name, **options)


def to_argv(config: Any) -> list[str]:
    """The flags that give this configuration again: what a launcher passes to a service's process."""
    argv = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if "help" not in field.metadata or value is None or value == field.default:
            continue
        name = field.name.replace("_", "-")
        if isinstance(value, bool):
            argv.append(f"--{name}" if value else f"--no-{name}")
        else:
            argv.append(f"--{name}={_show(value)}")
    return argv


def describe(config: Any) -> str:
    """The resolved configuration on one line, for the log."""
    return " ".join(f"{field.name}={_show(getattr(config, field.name))}" for field in dataclasses.fields(config))


def require(ok: bool, flag_name: str, value: object, allowed: str) -> None:
    """Raises ConfigError naming the flag, its value and what is allowed."""
    if not ok:
        raise ConfigError(f"--{flag_name.replace('_', '-')} is {value}; it must be {allowed}")


def require_folder(path: str, name: str) -> None:
    """path: a folder to write into, which may be made anew. Raises ConfigError where a file stands in its way."""
    there = next(part for part in (Path(path), *Path(path).absolute().parents) if part.exists())
    if not there.is_dir():
        raise ConfigError(f"{name} is {path}, but {there} is a file; name a folder")


def exit_with(error: PacelineError, *, prog: str) -> NoReturn:
    """Ends the program with the error's message on stderr and its exit code."""
    print(f"{prog}: {error}", file=sys.stderr)
    raise SystemExit(error.exit_code)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")


def _plain_type(hint: Any) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(part for part in typing.get_args(hint) if part is not type(None))
    return hint


def _comma_separated(text: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(",")) if text.strip() else ()
    if not all(parts):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty item; take a comma out")
    return parts


def _show(value: Any) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)
