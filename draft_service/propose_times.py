"""What proposals take, by shape and sessions: measured before the draft is ready, for the routers' cost models."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
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
_REPEATS = (2, 12)  # the first of a kind is slow, and a single other one may be late: a target may start beside
_LOOK_MS = 25.0  # of a kind, within these repeats
_LONG_MS = 15.0  # no batch larger than one that took so long is tried


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
    times: list[ProposeTime] = []
    with ExitStack() as stack:
        tables = [stack.enter_context(closing(PageTable(allocator))) for _ in range(min(most, max(_SESSIONS)))]
        for table in tables:
            table.reserve(_NUM_ROWS + MAX_SCRATCH_NODES)
        for shape in config.graph_shapes:
            times += _of_shape(drafter, tables, shape, feature_size=feature_size)
    return tuple(times)


def _of_shape(
    drafter: Drafter | DeviceDrafter, tables: Sequence[PageTable], shape: TreeShape, *, feature_size: int
) -> Iterator[ProposeTime]:
    propose = ProposeParams.of(shape, seed=0, temperature=0.0)
    tokens, features = np.zeros(_NUM_ROWS, np.int32), torch.zeros(_NUM_ROWS, feature_size)
    for num_sessions in _SESSIONS:
        if num_sessions > len(tables):
            return
        items = [
            ExtendItem(table=table, base_len=0, tokens=tokens, features=features, propose=propose)
            for table in tables[:num_sessions]
        ]
        spent_ms: list[float] = []
        least, most = _REPEATS
        while len(spent_ms) < least or (len(spent_ms) < most and sum(spent_ms[1:]) < _LOOK_MS):
            started = time.perf_counter()
            drafter.extend(items)
            spent_ms.append((time.perf_counter() - started) * 1e3)
        yield ProposeTime(shape, num_sessions, min(spent_ms))
        if min(spent_ms) > _LONG_MS:
            return
