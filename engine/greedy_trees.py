"""What a head needs to grow the greedy trees of a round in one call, and the trees that come of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.draft_batch import ExtendItem, min_score
from kernels.head import GreedyTrees
from paceline.tree import DraftTree
from paceline.types import TreeShape

_NO_TREE = (0, 1, 1)  # num_steps, topk, num_nodes


def greedy_trees(items: Sequence[ExtendItem], shapes: Sequence[TreeShape | None], *, dtype: torch.dtype) -> GreedyTrees:
    """shapes: of each item's tree, None where it gets none. dtype: the head's."""
    page_size = items[0].table.page_size
    asks, pages = [], []
    num_pages = 0
    for item, shape in zip(items, shapes, strict=True):
        num_rows = len(item.tokens)
        tree = _NO_TREE if shape is None else (shape.num_steps, shape.eagle_topk, shape.num_draft_tokens)
        scratch = 0 if shape is None else (shape.num_steps - 1) * shape.eagle_topk
        asks.append((item.base_len, num_rows, num_pages, *tree))
        num_positions = item.committed_len + scratch
        assert num_positions <= item.table.capacity
        own = item.table.page_ids[: (num_positions + page_size - 1) // page_size]
        pages.append(own)
        num_pages += len(own)
    features = [item.features for item in items]
    return GreedyTrees(
        asks=np.array(asks, np.int64),
        least_scores=np.array([min_score(0 if s is None else s.min_path_permille) for s in shapes], np.float32),
        tokens=np.concatenate([item.tokens for item in items]).astype(np.int64),
        features=(features[0] if len(features) == 1 else torch.cat(features)).to(dtype),
        page_ids=np.concatenate(pages).astype(np.int32),
        page_size=page_size,
    )


def grown_trees(items: Sequence[ExtendItem], nodes: np.ndarray) -> list[DraftTree | None]:
    """nodes: [items, 2, 64] int32 from ``Head.grow``. None for an item that asked for no tree."""
    counts = (nodes[:, 1] >= 0).sum(1).tolist()
    return [
        None if item.propose is None else _tree(int(item.tokens[-1]), nodes[i, :, :count])
        for i, (item, count) in enumerate(zip(items, counts, strict=True))
    ]


def _tree(root: int, nodes: np.ndarray) -> DraftTree:
    whole = np.empty((2, nodes.shape[1] + 1), np.int32)
    whole[:, 0] = root, -1
    whole[:, 1:] = nodes
    return DraftTree.grown(whole[0], whole[1])
