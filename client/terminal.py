"""What the terminal does to a command: Ctrl-C, a reader that goes away, a full device, bytes that are no text."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn, TextIO

_INTERRUPTED = 130
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def run_in_terminal(name: str, command: Callable[[], int]) -> int:
    """The exit code of command, once its output is written: 130 after Ctrl-C, 1 where nobody takes the output."""
    try:
        try:
            return command()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        _say(name, "interrupted")
        return _INTERRUPTED
    except BrokenPipeError:
        _write_no_more()
        return 1
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        _write_no_more()
        where = error.filename or "the output"
        _say(name, f"{where} cannot be written: {error.strerror}; make room, or write elsewhere")
        return 1


@contextlib.contextmanager
def ending_at_ctrl_c(name: str) -> Iterator[None]:
    """While this is open Ctrl-C ends the process on the spot: for imports, of which some replace an exception that
    comes in their midst by one of their own. Where something else handles or ignores Ctrl-C, it goes on to do so.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def end(*_: object) -> NoReturn:
        _say(name, "interrupted")
        os._exit(_INTERRUPTED)

    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def keep_bytes(stream: TextIO) -> None:
    """From now on bytes that are no UTF-8 are read as lone surrogates, for else the lines after them would be lost."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="surrogateescape")


def _write_no_more() -> None:
    """What is left in the buffer would fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(name: str, what: str) -> None:
    new_line = "\n" if sys.stderr.isatty() else ""  # the terminal shows ^C, and perhaps half a line of an answer
    print(f"{new_line}{name}: {what}", file=sys.stderr)
