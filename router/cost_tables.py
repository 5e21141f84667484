"""What steps and proposals take, as the services measured it when they warmed up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from paceline.step_table import StepTable
from paceline.types import TreeShape

_ROUND_ROWS = 2  # with which proposals are measured


class ProposeTable:
    """Milliseconds from a batch of asks to its trees, by growth and number of sessions. Immutable.

    As with steps, a growth takes no longer than what was measured of one that covers it. One that was measured at a
    single size, for it took long, grows with the sessions as the one that was measured at most.
    """

    def __init__(self, times: Iterable[tuple[TreeShape, int, float]]) -> None:
        """times: growth, sessions and milliseconds; any order."""
        measured = list(times)
        groups: dict[TreeShape, list[tuple[float, float]]] = {}
        for growth, count, _ in measured:
            bound = min(ms for other, most, ms in measured if most >= count and covers(other, growth))
            groups.setdefault(growth, []).append((float(count), bound))
        longest = max(groups.values(), key=len)
        best = StepTable(longest)
        for pairs in groups.values():
            if len(pairs) == 1:
                (sessions, ms), factors = pairs[0], best.ms / best.at_one(pairs[0][0])
                further = zip(best.rows.tolist(), factors.tolist(), strict=True)
                pairs += [(more, ms * factor) for more, factor in further if more > sessions]
        self._tables: Mapping[TreeShape, StepTable] = {growth: StepTable(pairs) for growth, pairs in groups.items()}

    @property
    def growths(self) -> Sequence[TreeShape]:
        return tuple(self._tables)

    @property
    def row_ms(self) -> float:
        """Of one row more, as the growth that tells it best was measured, or the growths of fewest and most rows at as
        many sessions: of what a session adds part is the host's, however few its rows. 0 where nothing tells it."""
        measured = [growth for growth, table in self._tables.items() if len(table.rows) > 1]
        if not measured:
            return 0.0
        prices = [self._tables[growth].slope / rows_of_session(growth) for growth in measured]
        least, most = min(measured, key=rows_of_session), max(measured, key=rows_of_session)
        few, many = self._tables[least], self._tables[most]
        sessions = float(min(few.rows[-1], many.rows[-1]))
        if rows := sessions * (rows_of_session(most) - rows_of_session(least)):
            prices.append((many.at_one(sessions) - few.at_one(sessions)) / rows)
        return max(0.0, min(prices))

    def of(self, growth: TreeShape) -> StepTable:
        """By sessions instead of rows. The growth is one of ``growths``."""
        return self._tables[growth]


def rows_of_session(growth: TreeShape) -> int:
    """That one session runs through the head for a tree: those of its last round, and the levels past the first."""
    return _ROUND_ROWS + (growth.num_steps - 1) * growth.eagle_topk


def covers(large: TreeShape, small: TreeShape) -> bool:
    """Whether every tree of the small growth is part of one of the large."""
    return (
        large.num_steps >= small.num_steps
        and large.eagle_topk >= small.eagle_topk
        and large.num_draft_tokens >= small.num_draft_tokens
    )
