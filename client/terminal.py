"""What the terminal does to a command: Ctrl-C, a reader that goes away, a full device, bytes that are no text, and
streams that were closed before it began."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from paceline.interrupt import INTERRUPTED, new_line_on_terminal, say_interrupted

if TYPE_CHECKING:
    from paceline.errors import PacelineError  # gRPC's import takes half a second

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def open_missing_streams() -> None:
    """To be called before anything else is opened: of stdin, stdout and stderr those that were closed are the null
    device from now on, for this process and its children. Else Python has None for them, and the next file that is
    opened gets their number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            stream = open(descriptor, mode, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 - stays open
            setattr(sys, name, stream)


def run_in_terminal(name: str, command: Callable[[], int]) -> int:
    """The exit code of command, once its output is written: 130 after Ctrl-C, 1 where nobody takes the output."""
    try:
        try:
            return command()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        say_interrupted(name)
        return INTERRUPTED
    except BrokenPipeError:
        _write_no_more()
        return 1
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        _write_no_more()
        where = error.filename or "the output"
        message = f"{where} cannot be written: {error.strerror}; make room, or write elsewhere"
        print(f"{new_line_on_terminal()}{name}: {message}", file=sys.stderr)
        return 1


def say_error(name: str, error: PacelineError) -> None:
    """On stderr: the message, and a line for each note to it."""
    lines = [f"{name}: {error}", *getattr(error, "__notes__", ())]
    print("\n".join(lines), file=sys.stderr)


def keep_bytes(stream: TextIO) -> None:
    """From now on bytes that are no UTF-8 are read as lone surrogates, for else the lines after them would be lost."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="surrogateescape")


def _write_no_more() -> None:
    """What is left in the buffer would fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
