"""ExtendForward: committed rows through the head on the device, in buckets of rows that a CUDA graph may hold."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from engine.graph_capture import Capture, Launch
from engine.head_model import HeadModel
from engine.pool import HeadCache
from engine.row_batch import RowBatch, spare_batch
from kernels.upload import Upload

_COLUMNS = 5  # tokens, positions, slots, last rows, their places


class ExtendForward:
    """Writes rows into the cache and the hidden state of each session's last row to its place in ``last_hidden``.

    Padded rows write to the cache's spare slot, and padded last rows to the last place. Nothing waits for the device.
    """

    def __init__(self, model: HeadModel, cache: HeadCache, *, max_rows: int, last_hidden: Tensor) -> None:
        """last_hidden: [places + 1, H] of the model's dtype."""
        self.max_rows = max_rows
        self._model = model
        self._cache = cache
        self._last_hidden = last_hidden
        self._spare_place = len(last_hidden) - 1
        self._buckets = [*_buckets_below(max_rows), max_rows]
        self._rows = Upload((_COLUMNS * max_rows,), torch.int64, model.device)
        self._features = Upload((max_rows, model.config.hidden_size), model.dtype, model.device)
        self._attention = model.attention_buffers(cache, max_rows=max_rows, max_requests=max_rows)
        self._replays: dict[tuple[int, int], Launch] = {}

    def keys(self) -> list[tuple[int, int]]:
        """(rows, attention variant) of each graph to capture, the largest first."""
        return [(bucket, variant) for bucket in reversed(self._buckets) for variant in self._attention.variants]

    def capture(self, key: tuple[int, int], capture: Capture) -> None:
        """Captures a key's forward. MUTATES the cache's spare slot."""
        columns = self._stage(key[0])
        columns[:] = 0
        columns[2] = self._cache.spare_slot
        columns[4] = self._spare_place
        self._rows.send(columns.size)
        self._attention.load(spare_batch(self._cache, 1), key[1])
        self._replays[key] = capture(partial(self._launch, *key))

    def run(self, rows: RowBatch, *, keeps_hidden: bool) -> None:
        """One forward of at most max_rows rows. MUTATES the cache and, where keeps_hidden, last_hidden at the places of
        the sessions that end in it."""
        num_rows, num_pieces = len(rows.tokens), len(rows.places)
        self._send_features(rows.features, num_rows)  # they travel while the host goes on
        bucket = self._buckets[bisect_left(self._buckets, num_rows)]
        columns = self._stage(bucket)
        if num_rows < bucket:
            columns[:2, num_rows:] = 0
            columns[2, num_rows:] = self._cache.spare_slot
        columns[0, :num_rows] = rows.tokens
        columns[1, :num_rows] = rows.positions
        columns[2, :num_rows] = rows.slots
        columns[3, :num_pieces] = rows.last_rows
        columns[3, num_pieces:] = 0
        columns[4] = self._spare_place
        if keeps_hidden:
            np.copyto(columns[4, :num_pieces], rows.places, where=rows.is_end)
        self._rows.send(columns.size)
        narrowest = self._attention.variants[0]  # where all rows fit it, wider ones are of no use
        key = (bucket, self._attention.load(rows.attention, narrowest if num_rows <= narrowest else None))
        replay = self._replays.get(key)
        if replay is None:
            self._launch(*key)
        else:
            replay()

    def _stage(self, bucket: int) -> np.ndarray:
        """int64 [columns, bucket]."""
        return self._rows.stage_array()[: _COLUMNS * bucket].reshape(_COLUMNS, bucket)

    def _send_features(self, parts: tuple[Tensor, ...], num_rows: int) -> None:
        if all(part.device.type == "cpu" and part.dtype == self._model.dtype for part in parts):
            staged = self._features.stage_rows(num_rows)
            if len(parts) == 1:
                staged.copy_(parts[0])
            else:
                torch.cat(parts, out=staged)
            self._features.send(num_rows)
            return
        at = 0
        for part in parts:
            self._features.tensor[at : at + len(part)].copy_(part)
            at += len(part)

    def _launch(self, bucket: int, variant: int) -> None:
        tokens, positions, slots, last_rows, places = self._rows.tensor[: _COLUMNS * bucket].view(_COLUMNS, bucket)
        hidden = self._model.forward(
            tokens,
            self._features.tensor[:bucket],
            positions,
            slots,
            self._attention.plan(bucket, variant),
            self._cache,
        )
        self._last_hidden.index_copy_(0, places, hidden.index_select(0, last_rows))


def _buckets_below(limit: int) -> Iterator[int]:
    """1, 2, 3, 4, 6, 8, 12, 16, ...: padding takes at most a third."""
    size = 1
    while size < limit:
        yield size
        if size > 1 and size * 3 // 2 < limit:
            yield size * 3 // 2
        size *= 2
