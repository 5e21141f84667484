"""Runs the head once at sampled work, so that the first such round is as fast as the next.

Greedy work is measured before the draft is ready, which warms it up as well.
"""

from __future__ import annotations

import numpy as np
import torch

from engine.device_drafter import DeviceDrafter
from engine.drafter import Drafter, ExtendItem, ProposeParams
from engine.pages import PageAllocator, PageTable
from paceline.types import MAX_SCRATCH_NODES

_NUM_ROWS = 2
_SHAPES = ((5, 1, 6), (5, 4, 16))


def warm_up(drafter: Drafter | DeviceDrafter, allocator: PageAllocator, *, feature_size: int) -> None:
    """A short prompt with a chain and with a tree. Leaves all pages free."""
    table = PageTable(allocator)
    try:
        table.reserve(_NUM_ROWS + MAX_SCRATCH_NODES)
        for num_steps, eagle_topk, num_draft_tokens in _SHAPES:
            propose = ProposeParams(
                num_steps=num_steps, eagle_topk=eagle_topk, num_draft_tokens=num_draft_tokens, seed=0, temperature=1.0
            )
            item = ExtendItem(
                table=table,
                base_len=0,
                tokens=np.zeros(_NUM_ROWS, np.int32),
                features=torch.zeros(_NUM_ROWS, feature_size),
                propose=propose,
            )
            drafter.extend([item])
    finally:
        table.close()
