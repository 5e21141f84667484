"""ExtendForward: committed rows through the head on the device, in buckets of rows that a CUDA graph may hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from engine.draft_batch import Piece, row_batch, spare_batch
from engine.graph_capture import Capture, Launch
from engine.head_model import HeadModel
from engine.pool import HeadCache
from kernels.upload import Upload

_COLUMNS = 5  # tokens, positions, slots, last rows, their places


class ExtendForward:
    """Writes rows into the cache and the hidden state of each item's last row to its place in ``last_hidden``.

    Padded rows write to the cache's spare slot, and padded last rows to the last place. Nothing waits for the device.
    """

    def __init__(self, model: HeadModel, cache: HeadCache, *, max_rows: int, last_hidden: Tensor) -> None:
        """last_hidden: [places + 1, H] of the model's dtype."""
        self.max_rows = max_rows
        self._model = model
        self._cache = cache
        self._last_hidden = last_hidden
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
        columns[4] = len(self._last_hidden) - 1
        self._rows.send(columns.size)
        self._attention.load(spare_batch(self._cache, 1), key[1])
        self._replays[key] = capture(partial(self._launch, *key))

    def run(self, pieces: Sequence[Piece]) -> None:
        """One forward of at most max_rows rows. MUTATES the cache, and last_hidden at the places of items that ask."""
        batch = row_batch(pieces)
        num_rows, num_pieces = len(batch.tokens), len(pieces)
        bucket = next(size for size in self._buckets if size >= num_rows)
        spare_place = len(self._last_hidden) - 1
        columns = self._stage(bucket)
        for column, values, padding in (
            (columns[0], batch.tokens, 0),
            (columns[1], batch.positions, 0),
            (columns[2], batch.slots, self._cache.spare_slot),
            (columns[3], batch.last_rows, 0),
        ):
            column[: len(values)] = values
            column[len(values) :] = padding
        columns[4, :num_pieces] = [piece.place if piece.gives_tree else spare_place for piece in pieces]
        columns[4, num_pieces:] = spare_place
        self._rows.send(columns.size)
        self._send_features(pieces, num_rows)
        key = (bucket, self._attention.load(batch.attention))
        replay = self._replays.get(key)
        if replay is None:
            self._launch(*key)
        else:
            replay()

    def _stage(self, bucket: int) -> np.ndarray:
        """int64 [columns, bucket]."""
        return self._rows.stage_array()[: _COLUMNS * bucket].reshape(_COLUMNS, bucket)

    def _send_features(self, pieces: Sequence[Piece], num_rows: int) -> None:
        parts = [piece.features for piece in pieces]
        if all(part.device.type == "cpu" and part.dtype == self._model.dtype for part in parts):
            torch.cat(parts, out=self._features.stage_rows(num_rows))
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
