"""Which program works on what: tiles of query rows, and splits of their KV. numpy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.ops import AttentionBatch
from kernels.triton_ops.attention_tuning import AttentionTuning

MAX_SPLITS = 1 << 15


@dataclass(frozen=True, slots=True)
class UnitRule:
    """How the KV of a batch is split: as evenly as the programs allow, or all at the same positions."""

    tuning: AttentionTuning
    group: int  # query heads of one KV head
    target_units: int  # units at once that fill the device

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

    def choose_rows(self, batch: AttentionBatch) -> int:
        """Rows a tile: the smaller, unless its tiles would read more than wide_gain times the KV of the larger's."""
        rows = list(self.tuning.tiles(self.group))
        few, many = rows[0], rows[-1]
        if batch.batch_invariant:
            return many
        q_len = np.diff(batch.q_indptr)
        if len(q_len) == 0 or int(q_len.max()) <= few:
            return few
        kv_len = (batch.prefix_len + batch.local_len).astype(np.int64)
        reads_few, reads_many = int((-(-q_len // few)) @ kv_len), int((-(-q_len // many)) @ kv_len)
        return many if reads_few > self.tuning.wide_gain * reads_many else few

    def make_units(self, batch: AttentionBatch, tile_rows: int) -> Units:
        """The table of a batch, splits of a tile in a run."""
        q_len = np.diff(batch.q_indptr)
        most = int(q_len.max(initial=0))
        kv_len = batch.prefix_len + batch.local_len
        if most <= tile_rows:
            request = np.flatnonzero(q_len)
            first, stop, rows = np.zeros(len(request), np.int64), kv_len[request], q_len[request]
        else:
            num_tiles = -(-q_len // tile_rows)
            request = np.repeat(np.arange(len(q_len)), num_tiles)
            first = (np.arange(len(request)) - np.repeat(np.cumsum(num_tiles) - num_tiles, num_tiles)) * tile_rows
            rows = q_len[request]
            unseen = np.maximum(rows - first - tile_rows, 0)
            stop = kv_len[request] - np.where(batch.is_causal[request], unseen, 0)
        if len(request) == 0:
            return Units(np.zeros((0, 4), np.int32), 0)
        if batch.batch_invariant:
            splits = np.where(rows <= tile_rows, -(-stop // self.tuning.invariant_split_len), 1)
        else:
            split_len = max(self.tuning.min_split_len, -(-int(stop.sum()) // self.target_units))
            if int(stop.max()) <= split_len:
                return Units(_unsplit(request, first), 0)
            splits = -(-stop // split_len)
        return _split(request, first, np.clip(splits, 1, MAX_SPLITS))


@dataclass(frozen=True, slots=True)
class Units:
    """A unit is one split of one tile, for each KV head a program."""

    table: np.ndarray  # [units, 4] int32: request, first row in it, split + num_splits << 16, first partial or 0
    num_partials: int  # splits of split tiles, each with a place in the workspace


def _unsplit(request: np.ndarray, first: np.ndarray) -> np.ndarray:
    table = np.empty((len(request), 4), np.int32)
    table[:, 0] = request
    table[:, 1] = first
    table[:, 2] = 1 << 16
    table[:, 3] = 0
    return table


def _split(request: np.ndarray, first: np.ndarray, splits: np.ndarray) -> Units:
    partials = np.where(splits > 1, splits, 0)
    ends = np.cumsum(partials)
    tile = np.repeat(np.arange(len(splits)), splits)
    split = np.arange(len(tile)) - (np.cumsum(splits) - splits)[tile]
    table = np.empty((len(tile), 4), np.int32)
    table[:, 0] = request[tile]
    table[:, 1] = first[tile]
    table[:, 2] = split + (splits[tile] << 16)
    table[:, 3] = (ends - partials)[tile]
    return Units(table, int(ends[-1]))
