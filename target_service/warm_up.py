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

_ROWS = (1, 8, 32)
_REPEATS = 3  # the first of a kind is slow


def warm_up(runner: StepRunner, allocator: PageAllocator) -> StepTimes:
    """Steps of one chain each, greedy and sampled. Leaves all pages free. Returns the best times seen."""
    table = PageTable(allocator)
    try:
        table.reserve(max(_ROWS))
        return StepTimes(list(_ROWS), [_best_ms(runner, table, num_rows, allocator.page_size) for num_rows in _ROWS])
    finally:
        table.close()


def _best_ms(runner: StepRunner, table: PageTable, num_rows: int, page_size: int) -> float:
    times_ms: list[float] = []
    for repeat in range(_REPEATS):
        builder = StepBuilder(page_size)
        builder.add_tree(table, DraftTree.chain([0] * num_rows), 0)
        started = time.perf_counter()
        runner.run(builder.build(), sampling_batch([SamplingParams(temperature=float(repeat == 0))]))
        times_ms.append((time.perf_counter() - started) * 1e3)
    return min(times_ms)
