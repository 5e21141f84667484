"""What Ctrl-C does to a program before something else handles it: a line and exit code 130, not a traceback."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn

INTERRUPTED = 130


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
        say_interrupted(name)
        os._exit(INTERRUPTED)

    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def exiting_at_ctrl_c(name: str) -> Iterator[None]:
    """Ctrl-C ends the program once all that it holds is let go of."""
    try:
        yield
    except KeyboardInterrupt:
        say_interrupted(name)
        raise SystemExit(INTERRUPTED) from None


def say_interrupted(name: str) -> None:
    """On stderr."""
    print(f"{new_line_on_terminal()}{name}: interrupted", file=sys.stderr, flush=True)


def new_line_on_terminal() -> str:
    """What a message on stderr begins with: a terminal shows ^C, and perhaps half a line of an answer."""
    return "\n" if sys.stderr.isatty() else ""
