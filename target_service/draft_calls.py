"""DraftCalls: when the drafts are asked, and how orders leave the decode loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from target_service.draft_asker import Asking
from target_service.draft_orders import DraftOrders
from target_service.events import Event, RowsSynced, TreesArrived
from target_service.loop_parts import LoopParts
from target_service.step_paths import NO_PATHS, StepPaths

_FOR_THE_NEXT_STEP = (TreesArrived, RowsSynced)  # after these the drafts are asked no sooner than after that step


class DraftCalls:
    """Engine thread only. Drafts are asked after each step, and after events that may make a request ask."""

    def __init__(self, parts: LoopParts, send: Callable[[dict[str, DraftOrders]], bool]) -> None:
        """send: see Outlets.send_orders."""
        self.asked_s = 0.0  # when they were last
        self.has_sent = False  # orders by the event loop, which needs the interpreter's lock for them
        self._parts = parts
        self._send = send
        self._paths = NO_PATHS
        self._has_asked = False  # since the last event that may make a request ask

    def note(self, events: Sequence[Event], *, is_idle: bool) -> None:
        """What has happened. is_idle: no step ran since the last call."""
        for event in events:
            self._has_asked &= isinstance(event, _FOR_THE_NEXT_STEP)
        if is_idle and not events:  # time alone may let a draft be tried again
            self._has_asked = False

    def catch_up(self, now_s: float) -> None:
        """Asks where something has happened since they were asked; sends what is ordered."""
        if not self._has_asked:
            self._ask(now_s)
        self._hand_over()

    def ask(self, now_s: float, paths: StepPaths) -> None:
        """Asks, and sends what is ordered. paths: of the step that is known now."""
        self._paths = paths
        self._ask(now_s)
        self._hand_over()

    def hand_over_late(self) -> None:
        """Rows that were read from the pool, when the device has something else to do."""
        if self._parts.asker.has_late_orders:
            self._send(self._parts.asker.take_late_orders())

    def _ask(self, now_s: float) -> None:
        parts = self._parts
        self._has_asked = True
        self.asked_s = now_s
        if not parts.drafts.followed:
            return
        self.hand_over_late()
        num_decoding = parts.requests.num_decoding
        deadline_s = parts.deadline.seconds(num_decoding)
        parts.asker.advance(Asking(now_s, self._paths, deadline_s, num_decoding, is_split=parts.halves.is_split))

    def _hand_over(self) -> None:
        if self._parts.asker.has_orders:
            self.has_sent |= self._send(self._parts.asker.take_orders())
