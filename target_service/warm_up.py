"""Runs a few steps before the target is ready: the first request is as fast as the next, and step times are known."""

from __future__ import annotations

import time

from engine.pages import PageAllocator, PageTable
from engine.plan import StepBuilder
from engine.sampling import sampling_batch
from paceline.tree import DraftTree
from paceline.types import SamplingParams
from target_service.deadline import StepTimes
from target_service.step_runner import StepRunner

_ROWS = (1, 2, 4, 6, 8, 16, 32, 48, 64, 96, 128, 160, 192, 256, 384, 512)
_TREE_NODES = 16  # the rows of a larger step are several trees
_REPEATS = 3  # the first of a kind is slow
_SHORT_MS = 40.0  # a step that takes longer is as good as steady, and not tried a third time
_LONG_MS = 75.0  # no step larger than one that took so long is tried


def warm_up(runner: StepRunner, allocator: PageAllocator, *, max_rows: int) -> StepTimes:
    """Steps of chains, greedy and sampled, up to max_rows. Leaves all pages free. Returns the best times seen."""
    largest = min(max_rows, allocator.num_free * allocator.page_size)
    table = PageTable(allocator)
    rows: list[int] = []
    times_ms: list[float] = []
    try:
        table.reserve(min(largest, _TREE_NODES))
        for num_rows in _ROWS:
            if num_rows > largest or (times_ms and times_ms[-1] > _LONG_MS):
                break
            rows.append(num_rows)
            times_ms.append(_best_ms(runner, table, num_rows, allocator.page_size))
    finally:
        table.close()
    return StepTimes(rows, times_ms)


def _best_ms(runner: StepRunner, table: PageTable, num_rows: int, page_size: int) -> float:
    sizes = [min(_TREE_NODES, num_rows - start) for start in range(0, num_rows, _TREE_NODES)]
    times_ms: list[float] = []
    for repeat in range(_REPEATS):
        builder = StepBuilder(page_size)
        for size in sizes:
            builder.add_tree(table, DraftTree.chain([0] * size), 0)
        sampling = sampling_batch([SamplingParams(temperature=float(repeat == 0))] * len(sizes))
        started = time.perf_counter()
        runner.run(builder.build(), sampling)
        times_ms.append((time.perf_counter() - started) * 1e3)
        if repeat and times_ms[-1] > _SHORT_MS:
            break
    return min(times_ms)
