"""UnitRule: how attention's work is cut into units, each a split of a tile of query rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class UnitRule:
    """How the KV of a batch is split: as evenly as the programs allow, or all at the same positions."""

    rows: tuple[int, ...]  # of each variant's tiles, ascending
    target_units: int  # units at once that fill the device
    wide_gain: float  # the larger tiles where the smaller would read more than this times the KV
    min_split_len: int  # positions: a shorter split costs more than it hides
    invariant_split_len: int  # positions of every split of a batch_invariant batch

    @property
    def numbers(self) -> np.ndarray:
        """fp64 [6], as ``kernels.round_tables`` takes them."""
        few, many = self.rows[0], self.rows[-1]
        lengths = self.min_split_len, self.invariant_split_len
        return np.array([few, many, self.target_units, self.wide_gain, *lengths], np.float64)

    def rows_for(self, q_len: int) -> int:
        """The variant for a batch of requests that all have q_len rows."""
        few, many = self.rows[0], self.rows[-1]
        return few if q_len <= few or -(-q_len // few) <= self.wide_gain * -(-q_len // many) else many

    def max_units(self, num_rows: int, tile_rows: int, *, max_requests: int) -> int:
        """Of any batch of at most num_rows rows that is not batch_invariant."""
        requests = min(num_rows, max_requests)
        return min(num_rows, num_rows // tile_rows + requests) + self.target_units

    @property
    def max_partials(self) -> int:
        """Splits of split tiles, in any batch that is not batch_invariant.

        A tile of len positions has n = ceil(len / p) splits, and p >= total / target. Where n > 1, n < 2 len / p.
        """
        return 2 * self.target_units
