"""How long tokens may wait for more of them: a message a client and step costs more than the step where many stream."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router.live_request import LiveRequest

# A client's message costs a router 60 to 130 us of CPU, whatever it carries (paceline bench router): these take
# 15 to 25 % of a core.
MESSAGES_PER_S = 2000


class StreamPacer:
    """Joins the tokens of up to max_steps steps, as far as it takes to stay within MESSAGES_PER_S over all streams.

    One stream alone, or a few, get a message a step. A stream's first tokens and its end never wait. 1: nothing does.
    """

    def __init__(self, max_steps: int, *, loop: asyncio.AbstractEventLoop) -> None:
        self._max_steps = max_steps
        self._loop = loop
        self._num_streams = 0
        self._held: set[LiveRequest] = set()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """A stream's first tokens were taken."""
        self._num_streams += 1

    def forget(self, live: LiveRequest) -> None:
        """The stream is over."""
        self._held.discard(live)
        if live.taken:
            self._num_streams -= 1

    def sent(self, live: LiveRequest) -> float:
        """All tokens that waited were taken; returns the time."""
        self._held.discard(live)
        return self._loop.time()

    def holds(self, live: LiveRequest) -> bool:
        """Whether the tokens that live holds after one more step may wait; ``live.release`` ends the wait."""
        if live.untaken_steps >= self._max_steps or not live.taken:
            return False
        wait_s = self._wait_s
        if self._loop.time() >= live.taken_at + wait_s:
            return False
        self._held.add(live)
        if self._timer is None:
            self._timer = self._loop.call_later(wait_s, self._release_due)
        return True

    @property
    def _wait_s(self) -> float:
        """Between two messages of a stream."""
        return self._num_streams / MESSAGES_PER_S

    def _release_due(self) -> None:
        """For streams whose target has gone silent: a step's tokens release those of the steps before."""
        self._timer = None
        wait_s = self._wait_s
        due = self._loop.time() - wait_s
        released = [live for live in self._held if live.taken_at <= due]
        self._held.difference_update(released)
        for live in released:
            live.release()
        if self._held:
            self._timer = self._loop.call_later(wait_s, self._release_due)
