"""AttemptRounds: what a request's attempt did, as its target tells it with the tokens."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable

from paceline.stats import SpeculationStats
from paceline.tree import MAX_NODES


class AttemptRounds:
    """For the attempts whose target never sends its own counts: it died, or the request was taken from it.

    They come by the hundred a step: two bytes a round are kept, and counted when the attempt is over.
    """

    __slots__ = ("_asked",)

    def __init__(self) -> None:
        self._asked = array("H")  # a round for which a draft was asked: nodes * MAX_NODES + accepted drafts

    def add(self, num_nodes: int, accepted: int) -> None:
        """A round for which a draft was asked. num_nodes: 1 to MAX_NODES; 1: its tree came too late."""
        self._asked.append(num_nodes * MAX_NODES + accepted)

    def stats(self, num_tokens: int) -> SpeculationStats:
        """As the target would count them. num_tokens: that the attempt gave, none of them cut off by a stop.

        The first comes from the prompt; each round gives one, and the drafts that it accepted.
        """
        late, proposed, accepted = 0, 0, list[int]()
        for entry in self._asked:
            num_nodes, length = divmod(entry, MAX_NODES)
            if num_nodes == 1:
                late += 1
            else:
                proposed += num_nodes - 1
                accepted.append(length)
        return SpeculationStats(
            speculative_rounds=len(accepted),
            rounds=max(num_tokens - 1 - sum(accepted), late + len(accepted)),
            accepted_drafts=sum(accepted),
            proposed_drafts=proposed,
            accepted_by_depth=_by_depth(accepted),
            late_rounds=late,
        )


def _by_depth(accepted: Iterable[int]) -> tuple[int, ...]:
    """Entry d - 1: how many accepted at least d."""
    rounds = Counter(accepted)
    depths = range(1, max(rounds, default=0) + 1)
    return tuple(sum(count for length, count in rounds.items() if length >= depth) for depth in depths)
