"""Which program works on what: tiles of query rows, and splits of their KV."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.ops import AttentionBatch
from kernels.round_tables import make_units
from kernels.unit_rule import UnitRule


@dataclass(frozen=True, slots=True)
class Units:
    """A unit is one split of one tile, for each KV head a program."""

    table: np.ndarray  # [units, 4] int32: request, first row in it, split + num_splits << 16, first partial or 0
    num_partials: int  # splits of split tiles, each with a place in the workspace


def units_of(rule: UnitRule, batch: AttentionBatch, tile_rows: int) -> Units:
    """The table of a batch, splits of a tile in a run."""
    num_tiles, kv_len = int(batch.q_indptr[-1]), int(batch.prefix_len.sum() + batch.local_len.sum())
    most = num_tiles + rule.target_units + kv_len // rule.invariant_split_len
    table = np.empty((most, 4), np.int32)
    num_units, num_partials = make_units(rule.numbers, batch, tile_rows, table.reshape(-1))
    return Units(table[:num_units], num_partials)
