"""ReplySender: how answers leave the engine's thread."""

from __future__ import annotations

from collections.abc import Callable

from draft_service.engine_loop import StepNote
from draft_service.front import Front
from draft_service.replies import Replies
from draft_service.round_lane import RoundLanes


class ReplySender:
    """Engine thread only. What a lane can carry is sent here and now; the event loop has the rest to do.

    What is counted is counted with the turn's note: the event loop, once awake, takes the interpreter's lock from the
    engine and from the lanes.
    """

    def __init__(self, lanes: RoundLanes, *, front: Front, call: Callable[..., object]) -> None:
        """call: has a function called on the event loop."""
        self._lanes = lanes
        self._front = front
        self._call = call
        self._answered: list[Replies] = []

    def answer(self, replies: Replies) -> None:
        rest = self._lanes.answer(replies)
        if rest is not None:
            self._call(self._front.answer, rest)
        self._answered.append(replies)

    def note(self, note: StepNote) -> None:
        answered, self._answered = self._answered, []
        self._call(self._front.note, note, answered)
