"""EndSignals: Ctrl-C, SIGTERM and a closed terminal as requests to end; and words for a terminal that may be gone."""

from __future__ import annotations

import errno
import os
import signal
import sys
from types import FrameType
from typing import TextIO

from paceline.interrupt import new_line_on_terminal

_GONE = (errno.EIO, errno.EPIPE)  # a terminal that was closed, a reader that has ended
_MOST_REQUESTS = 2  # that do something


class EndSignals:
    """The first request to end raises KeyboardInterrupt in the main thread, and says what that waits for; the next one
    raises it again, for an end at once; those after it do nothing, so that the end at once is not cut short.

    A closed terminal can send several SIGHUP at once, so one counts as the first request alone.
    """

    def __init__(self, waits_for: str) -> None:
        self.waits_for = waits_for  # what the first request says
        self._num_requests = 0

    def listen(self) -> None:
        """From now on. A shell starts background jobs with SIGINT ignored, and nohup means what it says with SIGHUP."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._ask)

    def heed_no_more(self) -> None:
        """From now on a request does nothing: what follows is the end at once."""
        self._num_requests = _MOST_REQUESTS

    def _ask(self, number: int, _: FrameType | None) -> None:
        if self._num_requests >= (1 if number == signal.SIGHUP else _MOST_REQUESTS):
            return
        self._num_requests += 1
        if self._num_requests == 1:
            say(f"{new_line_on_terminal()}stopping: {self.waits_for}; Ctrl-C again ends them now", sys.stderr)
        else:
            say(f"{new_line_on_terminal()}ending them now", sys.stderr)
        raise KeyboardInterrupt


def say(words: str, stream: TextIO) -> None:
    """One line at once. Where nobody is left to read the stream, all that it gets from now on goes nowhere."""
    try:
        print(words, file=stream, flush=True)
    except OSError as error:
        if error.errno not in _GONE:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
