"""WaitNotice: tells what a request waits for, where that takes long."""

from __future__ import annotations

import sys
import threading
from types import TracebackType

from client.client import PacelineClient
from paceline.errors import PacelineError
from paceline.interrupt import new_line_on_terminal
from paceline.v1 import router_pb2

_QUIET_S = 1.0  # without a word of the answer, before the router is asked; and between two looks at it
_LONG_LOOKS = 3  # that find a target ready, before a terminal is told that it is a matter of time


class WaitNotice:
    """While it is open, a line on stderr, once, where the answer stays out because no target is ready. On a terminal
    another one, once, where the first token takes long.

    Its thread asks the router; it ends with the notice, or with the question that it has just asked.
    """

    def __init__(self, client: PacelineClient) -> None:
        self._client = client
        self._news = threading.Event()  # a word of the answer, or the end
        self._is_over = False
        self._has_text = False

    def heard(self) -> None:
        """Something of the answer came."""
        self._has_text = True
        self._news.set()

    def __enter__(self) -> WaitNotice:
        threading.Thread(target=self._watch, name="wait notice", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        self._news.set()

    def _watch(self) -> None:
        num_looks = 0
        while not self._is_over:
            if self._news.wait(_QUIET_S):
                self._news.clear()
                continue
            try:
                info = self._client.info()
            except PacelineError as error:
                is_said = self._say(f"the router cannot be asked what for: {error}")
            else:
                is_said = not any(target.ready for target in info.targets) and self._say(self._no_target(info))
                num_looks += 1
                if num_looks == _LONG_LOOKS and not is_said and not self._has_text and sys.stderr.isatty():
                    self._say(_matter_of_time(info))
            if is_said:
                return

    def _say(self, why: str) -> bool:
        """Whether it was: not where the answer went on meanwhile."""
        if self._news.is_set():
            return False
        begin = new_line_on_terminal() if self._has_text else ""
        print(f"{begin}waiting: {why}", file=sys.stderr, flush=True)
        return True

    def _no_target(self, info: router_pb2.RouterServiceGetInfoResponse) -> str:
        states = "; ".join(f"{target.address}: {target.message or 'no word from it yet'}" for target in info.targets)
        return f"no target of the router at {self._client.address} is ready ({states or 'it knows none'})"


def _matter_of_time(info: router_pb2.RouterServiceGetInfoResponse) -> str:
    running, queued = sum(target.running_requests for target in info.targets), info.queued_requests
    return f"a long prompt is read, or others go first (requests that run: {running}, in the queue: {queued})"
