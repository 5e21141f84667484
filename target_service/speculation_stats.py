"""What speculation did: counted for each request, and over a window for the whole target."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from paceline.stats import SpeculationStats

WINDOW_ROUNDS = 256


class RequestStats:
    """Counts of one request's verify rounds. accepted_by_depth[d - 1]: rounds that accepted at least d drafts."""

    __slots__ = (
        "accepted_by_depth",
        "accepted_drafts",
        "late_rounds",
        "proposed_drafts",
        "rounds",
        "speculative_rounds",
    )

    def __init__(self) -> None:
        self.speculative_rounds = 0
        self.rounds = 0  # known at the request's end: till then the SequenceTable counts
        self.accepted_drafts = 0
        self.proposed_drafts = 0
        self.late_rounds = 0
        self.accepted_by_depth: list[int] = []

    def snapshot(self) -> SpeculationStats:
        """The counts as they are now."""
        return SpeculationStats(
            speculative_rounds=self.speculative_rounds,
            rounds=self.rounds,
            accepted_drafts=self.accepted_drafts,
            proposed_drafts=self.proposed_drafts,
            accepted_by_depth=tuple(self.accepted_by_depth),
            late_rounds=self.late_rounds,
        )

    def count(self, *, num_nodes: int, accept_length: int) -> None:
        """One round that verified num_nodes nodes, more than one, the root included."""
        self.speculative_rounds += 1
        self.accepted_drafts += accept_length
        self.proposed_drafts += num_nodes - 1
        missing = accept_length - len(self.accepted_by_depth)
        if missing > 0:
            self.accepted_by_depth += [0] * missing
        for depth in range(accept_length):
            self.accepted_by_depth[depth] += 1


class AcceptanceWindow:
    """The accepted lengths of the target's last WINDOW_ROUNDS speculative rounds."""

    def __init__(self) -> None:
        self._accepted: deque[int] = deque(maxlen=WINDOW_ROUNDS)

    def __len__(self) -> int:
        return len(self._accepted)

    def extend(self, accept_lengths: Iterable[int]) -> None:
        self._accepted.extend(accept_lengths)

    def mean_accepted_length(self) -> float:
        """Mean of accept_length + 1; 0 without a round."""
        return float(np.mean(self._accepted)) + 1.0 if self._accepted else 0.0

    def accepted_by_depth(self) -> list[float]:
        """Entry d - 1: share of the rounds that accepted at least d drafts."""
        if not self._accepted:
            return []
        counts = np.bincount(self._accepted)
        at_least = counts[::-1].cumsum()[::-1]
        return (at_least[1:] / len(self._accepted)).tolist()
