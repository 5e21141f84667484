"""The event loop's side of the engine: streams that wait for answers, and boards that watchers read."""

from __future__ import annotations

import time
from dataclasses import dataclass

from draft_service.engine_loop import Output
from draft_service.load import LoadBoard
from draft_service.metrics import DraftMetrics
from draft_service.round_board import RoundBoard
from draft_service.streams import StreamHub


@dataclass(frozen=True, slots=True)
class Front:
    """Takes the engine's outputs apart. Event loop only."""

    hub: StreamHub
    load: LoadBoard
    rounds: RoundBoard
    metrics: DraftMetrics

    def deliver(self, output: Output) -> None:
        """One output: answers first, for targets wait for them."""
        self.hub.deliver(output.replies)
        record = output.record
        self.load.update(output.load, None if record is None else (record.start_s, record.stop_s))
        if record is not None:
            self.rounds.update(record, time.time_ns() // 1_000_000)
        self.metrics.update(output)
