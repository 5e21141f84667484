"""What speculation did for one request, or, added up, for many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """Counts of verify rounds. A request's attempts add up, and so do requests."""

    speculative_rounds: int = 0  # verify rounds with more than one node
    rounds: int = 0
    accepted_drafts: int = 0  # over the speculative rounds, without the extra token, before a stop cut them
    proposed_drafts: int = 0
    accepted_by_depth: tuple[int, ...] = ()  # entry d - 1: speculative rounds that accepted at least d drafts
    late_rounds: int = 0

    @property
    def mean_accepted_length(self) -> float | None:
        """Tokens a speculative round, the extra one included; None without such a round."""
        if self.speculative_rounds == 0:
            return None
        return self.accepted_drafts / self.speculative_rounds + 1

    def __add__(self, other: SpeculationStats) -> SpeculationStats:
        pairs = zip_longest(self.accepted_by_depth, other.accepted_by_depth, fillvalue=0)
        return SpeculationStats(
            self.speculative_rounds + other.speculative_rounds,
            self.rounds + other.rounds,
            self.accepted_drafts + other.accepted_drafts,
            self.proposed_drafts + other.proposed_drafts,
            tuple(mine + its for mine, its in pairs),
            self.late_rounds + other.late_rounds,
        )


def count_by_depth(rounds: Sequence[int]) -> tuple[int, ...]:
    """Entry d - 1: rounds that accepted at least d drafts. rounds: entry n counts those that accepted n."""
    counts: list[int] = []
    at_least = sum(rounds)
    for exactly in rounds:
        at_least -= exactly
        if at_least == 0:
            break
        counts.append(at_least)
    return tuple(counts)
