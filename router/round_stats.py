"""What speculation did for a request, over all its attempts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest


@dataclass(frozen=True, slots=True)
class RoundStats:
    """Counts of the protos' SpeculationStats. Attempts add up."""

    speculative_rounds: int = 0
    rounds: int = 0
    accepted_drafts: int = 0
    proposed_drafts: int = 0
    accepted_by_depth: tuple[int, ...] = ()
    late_rounds: int = 0

    def __add__(self, other: RoundStats) -> RoundStats:
        pairs = zip_longest(self.accepted_by_depth, other.accepted_by_depth, fillvalue=0)
        return RoundStats(
            self.speculative_rounds + other.speculative_rounds,
            self.rounds + other.rounds,
            self.accepted_drafts + other.accepted_drafts,
            self.proposed_drafts + other.proposed_drafts,
            tuple(mine + its for mine, its in pairs),
            self.late_rounds + other.late_rounds,
        )
