"""RoundColumns: the rounds of one step that asked a draft, and how they went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.types import TreeShape


@dataclass(frozen=True, slots=True, eq=False)
class RoundColumns:
    """Columns over the rounds; routers learn acceptance from them."""

    request: np.ndarray  # uint64 [m]
    shapes: Sequence[TreeShape]  # [m], as asked for
    num_nodes: np.ndarray  # int64 [m], the root included; 1: the tree came too late
    accept_length: np.ndarray  # int64 [m]

    def of(self, chosen: np.ndarray) -> RoundColumns:
        """Those rounds alone. chosen: bool [m]."""
        shapes = [self.shapes[i] for i in np.flatnonzero(chosen).tolist()]
        return RoundColumns(self.request[chosen], shapes, self.num_nodes[chosen], self.accept_length[chosen])
