"""WaitingAsks: the asks of one message whose sessions wait for nothing else, until a step takes them."""

from __future__ import annotations

import numpy as np

from draft_service.session import Ask
from draft_service.step_batch import StepBatch


class WaitingAsks:
    """An entry of the line in which work waits, as a Session is."""

    def __init__(self, key: int, batch: StepBatch) -> None:
        self.key = key
        self._batch: StepBatch | None = batch

    @property
    def has_work(self) -> bool:
        return self._batch is not None

    def take(self, max_rows: int) -> StepBatch | None:
        """The first sessions, as many as have at most max_rows rows together; None where the first has more."""
        batch = self._batch
        assert batch is not None, "there is nothing to take"
        if len(batch.tokens) <= max_rows:
            self._batch = None
            return batch
        count = int((batch.num_rows.cumsum() <= max_rows).sum())
        if not count:
            return None
        self._batch = batch.take(np.arange(count, batch.size))
        return batch.take(np.arange(count))

    def pull(self, seat: int) -> Ask | None:
        """Takes one session's ask out; None where it has none here."""
        batch = self._batch
        if batch is None:
            return None
        places = (batch.seat == seat).nonzero()[0]
        if not len(places):
            return None
        others = (batch.seat != seat).nonzero()[0]
        self._batch = batch.take(others) if len(others) else None
        return batch.ask(int(places[0]))
