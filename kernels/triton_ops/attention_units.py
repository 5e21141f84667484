"""Which program works on what: tiles of query rows, and splits of their KV. numpy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.ops import AttentionBatch
from kernels.triton_ops.attention_tuning import AttentionTuning


@dataclass(frozen=True, slots=True)
class UnitRule:
    """How the KV of a batch is split: as evenly as the programs allow, or all at the same positions."""

    tuning: AttentionTuning
    rows: tuple[int, ...]  # of each variant's tiles, ascending
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
        few, many = self.rows[0], self.rows[-1]
        if batch.batch_invariant:
            return many
        q_len = _lengths(batch.q_indptr)
        if q_len.max(initial=0) <= few:
            return few
        kv_len = (batch.prefix_len + batch.local_len).astype(np.int64)
        reads_few, reads_many = -(-q_len // few) @ kv_len, -(-q_len // many) @ kv_len
        return many if reads_few > self.tuning.wide_gain * reads_many else few

    def make_units(self, batch: AttentionBatch, tile_rows: int) -> Units:
        """The table of a batch, splits of a tile in a run."""
        q_len = _lengths(batch.q_indptr)
        kv_len = batch.prefix_len + batch.local_len
        if q_len.max(initial=0) <= tile_rows:
            request = q_len.nonzero()[0]
            first, stop = np.zeros(len(request), np.int64), kv_len[request]
        else:
            num_tiles = -(-q_len // tile_rows)
            request = np.arange(len(q_len)).repeat(num_tiles)
            first = (np.arange(len(request)) - (num_tiles.cumsum() - num_tiles).repeat(num_tiles)) * tile_rows
            unseen = np.maximum(q_len[request] - first - tile_rows, 0)
            stop = kv_len[request] - unseen * batch.is_causal[request]
        if batch.batch_invariant:
            splits = np.where(q_len[request] <= tile_rows, -(-stop // self.tuning.invariant_split_len), 1)
            return _split(request, first, splits)
        split_len = max(self.tuning.min_split_len, -(-int(stop.sum()) // self.target_units))
        if stop.max(initial=0) <= split_len:
            return _unsplit(request, first)
        return _split(request, first, np.maximum(-(-stop // split_len), 1))


@dataclass(frozen=True, slots=True)
class Units:
    """A unit is one split of one tile, for each KV head a program."""

    table: np.ndarray  # [units, 4] int32: request, first row in it, split + num_splits << 16, first partial or 0
    num_partials: int  # splits of split tiles, each with a place in the workspace


def _unsplit(request: np.ndarray, first: np.ndarray) -> Units:
    table = np.zeros((len(request), 4), np.int32)
    table[:, 0] = request
    table[:, 1] = first
    table[:, 2] = 1 << 16
    return Units(table, 0)


def _split(request: np.ndarray, first: np.ndarray, splits: np.ndarray) -> Units:
    partials = splits * (splits > 1)
    ends = partials.cumsum()
    tile = np.arange(len(splits)).repeat(splits)
    table = np.empty((len(tile), 4), np.int32)
    table[:, 0] = request[tile]
    table[:, 1] = first[tile]
    table[:, 2] = np.arange(len(tile)) - (splits.cumsum() - splits)[tile] + (splits[tile] << 16)
    table[:, 3] = (ends - partials)[tile]
    return Units(table, int(partials.sum()))


def _lengths(indptr: np.ndarray) -> np.ndarray:
    return indptr[1:] - indptr[:-1]
