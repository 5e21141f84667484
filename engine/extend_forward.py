"""ExtendForward: committed rows through the head on the device, in buckets of rows that a CUDA graph may hold."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.extend_batch import ExtendBatch, FeaturePart, joined
from engine.graph_capture import Capture, Launch
from engine.head_model import HeadModel
from engine.pool import HeadCache
from engine.round_arena import RoundArena, aligned, extend_layout
from engine.wire import dtype_name
from kernels.ops import AttentionPlanner, AttentionTables
from kernels.round_tables import (
    NUM_EXTEND_COLUMNS,
    ExtendLayout,
    PageLists,
    Piece,
    Room,
    copy_buffer,
    copy_tensor,
    extend_tables,
)
from paceline.rounds import RawTensor

_EARLY_BYTES = 128 << 10  # features from here on travel before the tables are made, which takes as long


class StagedRows(NamedTuple):
    """One forward whose bytes [start, stop) of the arena are to be sent before its launch."""

    start: int
    stop: int
    page_indptr: int  # the byte of the sessions' lists of pages
    launch: Launch


class ExtendForward:
    """Writes rows into the cache and the hidden state of each session's last row to its place in ``last_hidden``.

    Padded rows write to the cache's spare slot, and padded last rows to the last place. Nothing waits for the device.
    """

    def __init__(
        self, model: HeadModel, cache: HeadCache, arena: RoundArena, *, planner: AttentionPlanner, last_hidden: Tensor
    ) -> None:
        """planner: for forwards of up to its limits' rows. last_hidden: [places + 1, H] of the model's dtype."""
        device = model.device
        self.max_rows = planner.limits.max_rows
        self._model = model
        self._cache = cache
        self._arena = arena
        self._planner = planner
        self._last_hidden = last_hidden
        self._room = Room(planner.rule.numbers, cache.spare_slot, len(last_hidden) - 1)
        self._dtype_name = dtype_name(model.dtype)
        self._row_bytes = model.config.hidden_size * model.dtype.itemsize
        self._is_causal = torch.ones(self.max_rows, dtype=torch.int32, device=device)
        self._no_ancestors = torch.zeros(self.max_rows, dtype=torch.int64, device=device)
        self._sizes = [*_buckets_below(self.max_rows), self.max_rows]
        self._buckets = [self._bucket(size) for size in self._sizes]

    @staticmethod
    def num_bytes(model: HeadModel, planner: AttentionPlanner) -> int:
        """Of the arena, before its middle."""
        max_rows = planner.limits.max_rows
        features = aligned(max_rows * model.config.hidden_size * model.dtype.itemsize)
        return features - extend_layout(planner.rule, max_rows).columns

    def keys(self) -> list[tuple[int, int]]:
        """(rows, attention variant) of each graph to capture, the largest first."""
        return [(size, variant) for size in reversed(self._sizes) for variant in self._planner.rule.rows]

    def capture(self, key: tuple[int, int], spare: ExtendBatch, capture: Capture) -> None:
        """Captures a key's forward. spare: one row on the cache's spare page. MUTATES that page."""
        bucket = self._buckets[self._sizes.index(key[0])]
        at = PageLists(self._arena.middle, self._arena.middle)
        filled = extend_tables(
            self._arena.stage(), bucket.array, spare.rows, piece=Piece(0, 1, 0, False), at=at, room=self._room
        )
        self._arena.send(bucket.numbers.columns, filled.stop)
        bucket.replays[key[1]] = capture(partial(self._launch, bucket, key[1]))

    def pieces(self, num_rows: int, *, keeps_hidden: bool) -> Iterator[Piece]:
        """So many rows, at most max_rows a forward."""
        for first in range(0, num_rows, self.max_rows):
            yield Piece(first, min(first + self.max_rows, num_rows), 0, keeps_hidden)

    def fill(self, stage: np.ndarray, batch: ExtendBatch, piece: Piece, *, pages_start: int) -> StagedRows:
        """MUTATES the arena's stage; its launch MUTATES the cache and, where the piece keeps_hidden, last_hidden at the
        places of the sessions that end in it. pages_start: the byte where the sessions' lists of pages begin."""
        num_rows = piece.last - piece.first
        bucket = self._buckets[bisect_left(self._sizes, num_rows)]
        start = bucket.numbers.columns
        parts = batch.features
        if num_rows < len(batch.rows.tokens):
            parts = (joined(parts)[piece.first : piece.last],)
        stop = self._stage_features(stage, bucket.start, parts)
        if stop is None:
            bucket.features[:num_rows].copy_(joined(parts))
        elif stop - bucket.start < _EARLY_BYTES:
            start = bucket.start
        else:
            self._arena.send(bucket.start, stop)
        at_pages = PageLists(self._arena.middle, pages_start)
        filled = extend_tables(stage, bucket.array, batch.rows, piece=piece, at=at_pages, room=self._room)
        launch = bucket.replays.get(filled.variant) or partial(self._launch, bucket, filled.variant)
        return StagedRows(start, filled.stop, bucket.numbers.page_indptr, launch)

    def _stage_features(self, stage: np.ndarray, at: int, parts: Sequence[FeaturePart]) -> int | None:
        """MUTATES the stage. Returns the byte behind them; None where some are of another dtype, or on a device."""
        for part in parts:
            if isinstance(part, RawTensor):
                if part.dtype != self._dtype_name:
                    return None
                at = copy_buffer(stage, at, part.data)
            else:
                if part.dtype != self._model.dtype or part.device.type != "cpu":
                    return None
                at = copy_tensor(stage, at, part.contiguous())
        return at

    def _bucket(self, size: int) -> _Bucket:
        """Views of the arena."""
        layout = extend_layout(self._planner.rule, size, end=self._arena.middle)
        start = layout.columns - aligned(size * self._row_bytes)
        columns = self._arena.int64(layout.columns, NUM_EXTEND_COLUMNS * size).view(NUM_EXTEND_COLUMNS, size)
        features = self._arena.part(start, size * self._row_bytes, self._model.dtype).view(size, -1)
        return _Bucket(size, start, layout, np.array([*layout]), columns, features, {})

    @torch.inference_mode()
    def _launch(self, bucket: _Bucket, variant: int) -> None:
        tokens, positions, slots, last_rows, places = bucket.columns
        plan = self._planner.plan(self._tables(bucket.numbers), bucket.size, variant)
        hidden = self._model.forward(tokens, bucket.features, positions, slots, plan, self._cache)
        self._last_hidden.index_copy_(0, places, hidden.index_select(0, last_rows))

    def _tables(self, layout: ExtendLayout) -> AttentionTables:
        size = layout.bucket
        return self._arena.attention_tables(
            layout,
            size,
            local_len=self._arena.int32(layout.local_len, size),
            is_causal=self._is_causal,
            ancestors=self._no_ancestors,
        )


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Forwards of so many rows, at fixed addresses."""

    size: int
    start: int  # the byte of the features, which lie before the tables
    numbers: ExtendLayout
    array: np.ndarray  # int64: the numbers
    columns: Tensor  # [NUM_EXTEND_COLUMNS, size] int64
    features: Tensor  # [size, H]
    replays: dict[int, Launch]  # by the attention's variant


def _buckets_below(limit: int) -> Iterator[int]:
    """1, 2, 3, 4, 6, 8, 12, 16, ...: padding takes at most a third."""
    size = 1
    while size < limit:
        yield size
        if size > 1 and size * 3 // 2 < limit:
            yield size * 3 // 2
        size *= 2
