"""AttemptRounds: what a request's attempt did, as its target tells it with the tokens."""

from __future__ import annotations

from array import array

from paceline.stats import SpeculationStats, count_by_depth
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
        late, proposed = 0, 0
        accepted = [0] * MAX_NODES  # rounds of a tree by drafts accepted
        for entry in self._asked:
            num_nodes, length = divmod(entry, MAX_NODES)
            if num_nodes == 1:
                late += 1
            else:
                proposed += num_nodes - 1
                accepted[length] += 1
        speculative, by_depth = sum(accepted), count_by_depth(accepted)
        return SpeculationStats(
            speculative_rounds=speculative,
            rounds=max(num_tokens - 1 - sum(by_depth), late + speculative),
            accepted_drafts=sum(by_depth),
            proposed_drafts=proposed,
            accepted_by_depth=by_depth,
            late_rounds=late,
        )
