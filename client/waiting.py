"""WaitNotice: tells somebody at a terminal what a request waits for, where that is a target."""

from __future__ import annotations

import sys
import threading
from types import TracebackType

from client.client import PacelineClient
from paceline.errors import PacelineError
from paceline.interrupt import new_line_on_terminal

_QUIET_S = 1.0  # without a word of the answer, before the router is asked; and between two looks at it


class WaitNotice:
    """While it is open, a line on stderr, once, where the answer stays out because no target is ready.

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
        while not self._is_over:
            if self._news.wait(_QUIET_S):
                self._news.clear()
                continue
            message = self._why()
            if message and not self._news.is_set():
                begin = new_line_on_terminal() if self._has_text else ""
                print(f"{begin}waiting: {message}", file=sys.stderr, flush=True)
                return

    def _why(self) -> str:
        """ "" where the answer is a matter of time alone."""
        router = self._client.address
        try:
            targets = self._client.info().targets
        except PacelineError as error:
            return f"the router cannot be asked what for: {error}"
        if any(target.ready for target in targets):
            return ""
        states = "; ".join(f"{target.address}: {target.message or 'no word from it yet'}" for target in targets)
        return f"no target of the router at {router} is ready ({states or 'it knows none'})"
