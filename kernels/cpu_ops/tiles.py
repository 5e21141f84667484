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
    q_len = np.diff(batch.q_indptr).astype(np.int64)
    kv_len = (batch.prefix_len + batch.local_len).astype(np.int64)
    num_tiles = -(-q_len // _TILE_ROWS)
    request = np.repeat(np.arange(len(q_len)), num_tiles)
    first = (np.arange(len(request)) - (np.cumsum(num_tiles) - num_tiles)[request]) * _TILE_ROWS
    rows = np.minimum(q_len[request] - first, _TILE_ROWS)
    is_causal = batch.is_causal[request]
    seen = kv_len[request] - q_len[request] + first + 1
    end = np.where(is_causal, seen + rows - 1, kv_len[request])
    begin, first_page = batch.q_indptr[:-1][request], batch.page_indptr[:-1][request]
    columns = [begin + first, rows, first_page, batch.prefix_len[request], end, seen, is_causal]
    return AttentionTiles(
        table=torch.from_numpy(np.stack([column.astype(np.int64) for column in columns], axis=1)).contiguous(),
        ancestors=torch.from_numpy(batch.ancestors.view(np.int64)).contiguous(),
        page_ids=torch.from_numpy(batch.page_ids.astype(np.int32)),
        page_size=batch.page_size,
        num_slots=(int(batch.page_ids.max(initial=-1)) + 1) * batch.page_size,
    )
