"""The steps that bench.gpu_attention times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.ops import AttentionBatch


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """num_requests alike: a tree of rows nodes each, or a causal chunk; lengths vary by a quarter around prefix_len."""

    num_requests: int
    rows: int
    prefix_len: int
    is_tree: bool


SHAPES = {
    "decode-1-200": AttentionShape(1, 1, 200, is_tree=True),
    "decode-1-1k": AttentionShape(1, 1, 1000, is_tree=True),
    "decode-1-8k": AttentionShape(1, 1, 8000, is_tree=True),
    "decode-8-200": AttentionShape(8, 1, 200, is_tree=True),
    "decode-32-200": AttentionShape(32, 1, 200, is_tree=True),
    "decode-128-200": AttentionShape(128, 1, 200, is_tree=True),
    "decode-256-200": AttentionShape(256, 1, 200, is_tree=True),
    "decode-256-1k": AttentionShape(256, 1, 1000, is_tree=True),
    "chain-64-200": AttentionShape(64, 4, 200, is_tree=True),
    "tree-1-200": AttentionShape(1, 16, 200, is_tree=True),
    "tree-1-8k": AttentionShape(1, 16, 8000, is_tree=True),
    "tree-8-200": AttentionShape(8, 16, 200, is_tree=True),
    "tree-32-200": AttentionShape(32, 16, 200, is_tree=True),
    "tree-32-1k": AttentionShape(32, 16, 1000, is_tree=True),
    "chunk-512": AttentionShape(1, 512, 0, is_tree=False),
    "chunk-512-2k": AttentionShape(1, 512, 2000, is_tree=False),
}


def make_batch(shape: AttentionShape, page_size: int) -> AttentionBatch:
    """Pages are dealt in a random order, a tree is one path."""
    rng = np.random.default_rng(0)
    spread = shape.prefix_len // 4 if shape.num_requests > 1 else 0
    prefix_len = shape.prefix_len + rng.integers(-spread, spread + 1, shape.num_requests)
    num_pages = -(-(prefix_len + shape.rows) // page_size)
    masks = [(1 << (row + 1)) - 1 for row in range(shape.rows)] if shape.is_tree else [0] * shape.rows
    return AttentionBatch(
        q_indptr=np.arange(shape.num_requests + 1, dtype=np.int32) * shape.rows,
        prefix_len=prefix_len.astype(np.int32),
        local_len=np.full(shape.num_requests, shape.rows, np.int32),
        page_indptr=np.append(0, np.cumsum(num_pages)).astype(np.int32),
        page_ids=rng.permutation(int(num_pages.sum())).astype(np.int32),
        is_causal=np.full(shape.num_requests, not shape.is_tree),
        ancestors=np.tile(np.array(masks, np.uint64), shape.num_requests),
        page_size=page_size,
    )
