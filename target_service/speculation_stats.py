"""What speculation did: counted for each request, and over a window for the whole target."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from paceline.stats import SpeculationStats, count_by_depth
from paceline.tree import MAX_NODES

WINDOW_ROUNDS = 256


class RoundCounts:
    """Counts of each request's verify rounds, columns over the rows of a SequenceTable."""

    def __init__(self, num_rows: int) -> None:
        self._rounds = np.zeros(num_rows, np.int64)
        self._late_rounds = np.zeros(num_rows, np.int64)
        self._proposed = np.zeros(num_rows, np.int64)
        self._accepted = np.zeros((num_rows, MAX_NODES), np.int64)  # rounds of a tree by drafts accepted

    def reset(self, row: int) -> None:
        for column in (self._rounds, self._late_rounds, self._proposed, self._accepted):
            column[row] = 0

    def add_rounds(self, rows: np.ndarray, *, late: np.ndarray) -> None:
        """One round of each of the rows. late: those of them whose tree did not come in time."""
        self._rounds[rows] += 1
        self._late_rounds[late] += 1

    def add_trees(self, rows: np.ndarray, *, num_nodes: np.ndarray, accept_length: np.ndarray) -> None:
        """Of those rounds the ones that verified more than one node, the root included."""
        self._proposed[rows] += num_nodes - 1
        self._accepted[rows, accept_length] += 1

    def of(self, row: int) -> SpeculationStats:
        """One request's counts as they are now."""
        accepted = self._accepted[row].tolist()
        by_depth = count_by_depth(accepted)
        return SpeculationStats(
            speculative_rounds=sum(accepted),
            rounds=self._rounds.item(row),
            accepted_drafts=sum(by_depth),
            proposed_drafts=self._proposed.item(row),
            accepted_by_depth=by_depth,
            late_rounds=self._late_rounds.item(row),
        )


class AcceptanceWindow:
    """The accepted lengths of the target's last WINDOW_ROUNDS speculative rounds."""

    def __init__(self) -> None:
        self._accepted: deque[int] = deque()
        self._rounds_by_length = [0] * MAX_NODES
        self._sum = 0

    def __len__(self) -> int:
        return len(self._accepted)

    def extend(self, accept_lengths: Iterable[int]) -> None:
        for accept_length in accept_lengths:
            self._accepted.append(accept_length)
            self._count(accept_length, 1)
        while len(self._accepted) > WINDOW_ROUNDS:
            self._count(self._accepted.popleft(), -1)

    def mean_accepted_length(self) -> float:
        """Mean of accept_length + 1; 0 without a round."""
        return self._sum / len(self._accepted) + 1.0 if self._accepted else 0.0

    def accepted_by_depth(self) -> list[float]:
        """Entry d - 1: share of the rounds that accepted at least d drafts."""
        return [count / len(self._accepted) for count in count_by_depth(self._rounds_by_length)]

    def _count(self, accept_length: int, rounds: int) -> None:
        self._rounds_by_length[accept_length] += rounds
        self._sum += rounds * accept_length
