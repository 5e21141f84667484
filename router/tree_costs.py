"""TreeCosts: what the way from asks to trees takes: the drafts' warm-up, corrected by the trees that came."""

from __future__ import annotations

import numpy as np

from paceline.step_table import Floats
from paceline.types import TreeShape
from router.cost_fit import LEAST_FACTOR, LEAST_NOISE_MS, OUTLIER, DriftingFit, Weight
from router.cost_tables import ProposeTable
from router.table_points import DOUBT, POINT, TablePoints

# Before they were seen: two messages and the threads that wake; what each session and each node costs the hosts, and
# the device past its warm-up. One H200, 1 to 32 requests with 4, 8 and 16 nodes: 0.1, 0.02 and 0.0035 ms; without nodes
# that fit is off by a quarter more. Two CPU cores: 2.5 ms a round.
RPC_MS = 1.0
SESSION_MS = 0.02
NODE_MS = 0.003

_GROWTH = Weight(0.0, 0.2, -0.9, 20_000.0)  # of one growth: by what share its times are off
_NOISE = 0.2  # of a time, relative: a newcomer's ask may meet a draft at work
_MEMORY = 2000.0  # observations
_PARTS = 5  # weights before those of growths and of the table's points
_BESIDE = 0.3  # of a draft's time, that a step on its host adds to it, before it was seen
_BESIDE_STD = 0.5
_BESIDE_ELSEWHERE = 0.05
_PAST_DEADLINE = 1.25  # what a late tree is taken to have needed, at least
_SPREAD = 0.2  # of the times around what is expected, relative, before any was seen
_SPREAD_MEMORY = 200.0  # observations
_STD_OF_MEAN = 1.25  # a normal distribution's, over its mean deviation


class TreeCosts:
    """The table's time at a growth and its sessions, times a scale, plus RPC, what each session and each node of its
    tree cost, and what a step that runs meanwhile takes from the draft; and of each growth, and each number of
    sessions, by what share that is off."""

    def __init__(self, proposals: ProposeTable, *, shares_host: bool, doubt: float = DOUBT) -> None:
        """doubt: share that ways which were not seen of late may be shorter than expected by."""
        self.proposals = proposals
        self._numbers = {growth: number for number, growth in enumerate(proposals.growths)}
        self._sessions = TablePoints(max(map(proposals.of, self._numbers), key=lambda table: len(table.rows)))
        self._seen = {growth: TablePoints(proposals.of(growth), doubt=doubt) for growth in self._numbers}
        beside = Weight(_BESIDE, _BESIDE_STD, 0.0, _MEMORY)
        self._fit = DriftingFit(
            [
                Weight(1.0, 0.3, 0.1, _MEMORY),
                Weight(RPC_MS, RPC_MS, 0.0, _MEMORY),
                Weight(SESSION_MS, SESSION_MS, 0.0, _MEMORY),
                Weight(NODE_MS, NODE_MS, 0.0, _MEMORY),
                beside if shares_host else Weight(0.0, _BESIDE_ELSEWHERE, 0.0, _MEMORY),
                *[_GROWTH] * len(self._numbers),
                *[POINT] * len(self._sessions),
            ]
        )
        self._deviation, self._heard = _SPREAD / _STD_OF_MEAN, 1.0

    @property
    def spread(self) -> float:
        """Standard deviation of the times around what is expected, relative."""
        return _STD_OF_MEAN * self._deviation

    def ms(self, growth: TreeShape, sessions: Floats, nodes: Floats | float, beside: float) -> Floats:
        """nodes: of a tree, on average. beside: share of the way in which a step runs. [...], of the shape of
        sessions."""
        weights, num_growths = self._fit.weights, len(self._numbers)
        scale, rpc_ms, by_session, by_node, by_step = weights[:_PARTS].tolist()
        off = weights[_PARTS + self._numbers[growth]] + self._sessions.at(sessions, weights[_PARTS + num_growths :])
        table = self.proposals.of(growth).at(sessions)
        factors = np.maximum(scale + beside * by_step + off, LEAST_FACTOR)
        ms: Floats = factors * table + rpc_ms + (by_session + by_node * nodes) * sessions
        return ms

    def fade(self, keep: float) -> None:
        """What was seen is worth so much of what it was, for ``hopes``."""
        for points in self._seen.values():
            points.fade(keep)

    def hopes(self, growth: TreeShape, sessions: Floats) -> Floats:
        """Factors below 1: how short ways may turn out that were hardly seen. [...], of the shape of sessions."""
        return self._seen[growth].hopes(sessions)

    def observe(self, growth: TreeShape, sessions: int, nodes: float, ms: float, *, beside: float) -> None:
        """One way, of trees of one growth, of so many nodes on average."""
        table, shares = self.proposals.of(growth).at_one(sessions), self._sessions.shares(sessions)
        growths = np.zeros(len(self._numbers))
        growths[self._numbers[growth]] = table
        parts = (table, 1.0, float(sessions), sessions * nodes, beside * table)
        features = np.concatenate([parts, growths, table * shares])
        expected = max(self._fit.expect(features), LEAST_FACTOR * table)
        value = min(max(ms, expected / OUTLIER), expected * OUTLIER)
        self._fit.observe(features, value, noise=_NOISE * expected + LEAST_NOISE_MS)
        self._seen[growth].see(self._seen[growth].shares(sessions))
        self._heard = min(self._heard + 1.0, _SPREAD_MEMORY)
        self._deviation += (abs(value / expected - 1.0) - self._deviation) / self._heard

    def observe_late(self, growth: TreeShape, sessions: int, nodes: float, ms: float, *, beside: float) -> None:
        """A way that was given up: the trees would have taken longer, by how much nobody knows."""
        least_ms = _PAST_DEADLINE * ms
        if float(self.ms(growth, np.array([float(sessions)]), nodes, beside)[0]) < least_ms:
            self.observe(growth, sessions, nodes, least_ms, beside=beside)
