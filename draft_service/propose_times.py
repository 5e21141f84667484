"""What proposals take, by shape and sessions: measured before the draft is ready, for the routers' cost models."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from draft_service.config import DraftConfig
from engine.device_drafter import DeviceDrafter
from engine.drafter import Drafter, ExtendItem, ProposeParams
from engine.pages import PageAllocator, PageTable, pages_for
from paceline.types import MAX_SCRATCH_NODES, TreeShape

_SESSIONS = (1, 4, 16, 64, 256)
_NUM_ROWS = 2  # of a session in a round: about what a tree's accepted path and the next token are
_LONG_MS = 15.0  # no batch larger than one that took so long is tried
_MORE_ROUNDS = 8  # of all kinds in turn: a target that starts beside makes some in a row slow, and those alone
_MOST_MS = 1000.0  # no further round once all of them have taken so long


class ProposeTime(NamedTuple):
    """So many sessions asked for one tree each."""

    shape: TreeShape
    num_sessions: int
    ms: float


def measure_proposals(
    drafter: Drafter | DeviceDrafter, allocator: PageAllocator, config: DraftConfig, *, feature_size: int
) -> tuple[ProposeTime, ...]:
    """The best times of batches of the graphs' shapes, of growing size. Leaves all pages free."""
    pages_a_session = pages_for(_NUM_ROWS + MAX_SCRATCH_NODES, allocator.page_size)
    most = min(config.max_running_requests, allocator.num_free // pages_a_session)
    with ExitStack() as stack:
        tables = [stack.enter_context(closing(PageTable(allocator))) for _ in range(min(most, max(_SESSIONS)))]
        for table in tables:
            table.reserve(_NUM_ROWS + MAX_SCRATCH_NODES)
        kinds = [kind for shape in config.graph_shapes for kind in _of_shape(drafter, tables, shape, feature_size)]
        began = time.perf_counter()
        for _ in range(_MORE_ROUNDS):
            if (time.perf_counter() - began) * 1e3 > _MOST_MS:
                break
            for kind in kinds:
                kind.measure(drafter)
    return tuple(ProposeTime(kind.shape, len(kind.items), kind.ms) for kind in kinds)


@dataclass(slots=True)
class _Kind:
    shape: TreeShape
    items: list[ExtendItem]
    ms: float = math.inf  # the best so far

    def measure(self, drafter: Drafter | DeviceDrafter) -> None:
        started = time.perf_counter()
        drafter.extend(self.items)
        self.ms = min(self.ms, (time.perf_counter() - started) * 1e3)


def _of_shape(
    drafter: Drafter | DeviceDrafter, tables: Sequence[PageTable], shape: TreeShape, feature_size: int
) -> Iterator[_Kind]:
    """Of each size twice, for the first of a kind is slow."""
    propose = ProposeParams.of(shape, seed=0, temperature=0.0)
    tokens, features = np.zeros(_NUM_ROWS, np.int32), torch.zeros(_NUM_ROWS, feature_size)
    for num_sessions in _SESSIONS:
        if num_sessions > len(tables):
            return
        items = [
            ExtendItem(table=table, base_len=0, tokens=tokens, features=features, propose=propose)
            for table in tables[:num_sessions]
        ]
        kind = _Kind(shape, items)
        kind.measure(drafter)
        kind.measure(drafter)
        yield kind
        if kind.ms > _LONG_MS:
            return
