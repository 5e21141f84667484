"""RoundBoard: the newest round, for an operator's eyes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from draft_service.step_record import StepRecord


@dataclass(frozen=True, slots=True)
class TimedRecord:
    record: StepRecord
    time_unix_ms: int


class RoundBoard:
    """Keeps the newest step that answered a round. Event loop only."""

    def __init__(self) -> None:
        self.latest: TimedRecord | None = None
        self._changed = asyncio.Event()

    def update(self, record: StepRecord, time_unix_ms: int) -> None:
        """Keeps the record if it answered a round."""
        if record.has_answers:
            self.latest = TimedRecord(record, time_unix_ms)
            self._changed.set()
            self._changed = asyncio.Event()

    async def wait(self, seen: TimedRecord | None) -> TimedRecord:
        """The newest round once it is another than ``seen``: a slow reader skips some."""
        while self.latest is None or self.latest is seen:
            await self._changed.wait()
        return self.latest
