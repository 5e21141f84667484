"""The event loop's side of the engine: streams that wait for answers, and boards that watchers read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from draft_service.engine_loop import StepNote
from draft_service.load import LoadBoard
from draft_service.metrics import DraftMetrics
from draft_service.replies import Replies
from draft_service.round_board import RoundBoard
from draft_service.streams import StreamHub


@dataclass(frozen=True, slots=True)
class Front:
    """Takes what the engine gives out. Event loop only."""

    hub: StreamHub
    load: LoadBoard
    rounds: RoundBoard
    metrics: DraftMetrics

    def answer(self, replies: Replies) -> None:
        """Wakes the streams."""
        self.hub.deliver(replies)

    def note(self, note: StepNote, answers: Sequence[Replies]) -> None:
        """To be called after the answers of the same turn, which it counts. Lets their streams write first."""
        asyncio.get_running_loop().call_soon(self._note, note, answers)

    def _note(self, note: StepNote, answers: Sequence[Replies]) -> None:
        for replies in answers:
            self.metrics.count_replies(replies)
        record = note.record
        self.load.update(note.load, None if record is None else (record.start_s, record.stop_s))
        if record is not None:
            self.rounds.update(record, time.time_ns() // 1_000_000)
        self.metrics.update(note)
