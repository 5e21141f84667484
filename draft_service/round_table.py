"""RoundTable: what asks and answers have in common of a round's table."""

from __future__ import annotations

import numpy as np

from kernels.round_wire import COMMITTED_LEN, ROUND, SESSION


class RoundTable:
    """Columns [b] of sessions are rows of the table, as kernels.round_wire says."""

    __slots__ = ()

    table: np.ndarray  # int64

    @property
    def session(self) -> np.ndarray:
        """uint64: its number."""
        return self.table[SESSION].view(np.uint64)

    @property
    def round(self) -> np.ndarray:
        """int64: of the ask that is answered once the rows are in."""
        return self.table[ROUND]

    @property
    def committed_len(self) -> np.ndarray:
        """int64: once the rows are in."""
        return self.table[COMMITTED_LEN]
