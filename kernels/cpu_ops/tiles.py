"""How the C attention kernel is told of a step: which rows go together, and where their KV lies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.ops import AttentionBatch

# Rows of a request that share the reading of its KV: few enough that two threads both get some of a small tree.
_TILE_ROWS = 4


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    """The arrays that C reads, kept alive here."""

    table: (
        Tensor  # [tiles, 7] int64: row, rows, first page, prefix, end, positions its first row sees if causal, causal
    )
    ancestors: Tensor  # [rows] int64, the bits of AttentionBatch.ancestors
    page_ids: Tensor  # [pages] int32
    page_size: int
    num_slots: int  # that the caches must have at least


def make_tiles(batch: AttentionBatch) -> AttentionTiles:
    starts = batch.q_indptr[:-1]
    q_len = batch.q_indptr[1:] - starts
    kv_len = batch.prefix_len + batch.local_len
    num_tiles = (q_len + (_TILE_ROWS - 1)) // _TILE_ROWS
    request = np.arange(len(q_len)).repeat(num_tiles)
    first = (np.arange(len(request)) - (num_tiles.cumsum() - num_tiles)[request]) * _TILE_ROWS
    rows = np.minimum(q_len[request] - first, _TILE_ROWS)
    is_causal, ends = batch.is_causal[request], kv_len[request]
    seen = ends - q_len[request] + first + 1
    table = np.empty((len(request), 7), np.int64)
    table[:, 0] = starts[request] + first
    table[:, 1] = rows
    table[:, 2] = batch.page_indptr[:-1][request]
    table[:, 3] = batch.prefix_len[request]
    table[:, 4] = np.where(is_causal, seen + rows - 1, ends)
    table[:, 5] = seen
    table[:, 6] = is_causal
    return AttentionTiles(
        table=torch.from_numpy(table),
        ancestors=torch.from_numpy(batch.ancestors.view(np.int64)).contiguous(),
        page_ids=torch.from_numpy(batch.page_ids.astype(np.int32)),
        page_size=batch.page_size,
        num_slots=(int(batch.page_ids.max(initial=-1)) + 1) * batch.page_size,
    )
