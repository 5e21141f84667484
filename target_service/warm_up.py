"""Runs a few steps before the target is ready: the first request is as fast as the next, and step times are known."""

from __future__ import annotations

import time
from dataclasses import dataclass

from engine.pages import PageAllocator, PageTable
from engine.plan import StepBuilder
from engine.sampling import sampling_batch
from paceline.tree import DraftTree
from paceline.types import SamplingParams
from target_service.deadline import StepTimes
from target_service.step_runner import StepRunner

_ROWS = (1, 2, 4, 6, 8, 16, 32, 48, 64, 96, 128, 160, 192, 256, 384, 512)
_TREE_NODES = 16  # the rows of a larger step are several trees
_LONG_MS = 75.0  # no step larger than one that took so long is tried
_MORE_ROUNDS = 4  # of all sizes in turn: a draft that starts beside, on the same cores, makes some in a row slow
_MOST_MS = 2000.0  # no further round once all have taken so long


def warm_up(runner: StepRunner, allocator: PageAllocator, *, max_rows: int) -> StepTimes:
    """Steps of chains, greedy and sampled, up to max_rows. Leaves all pages free. Returns the best times seen."""
    largest = min(max_rows, allocator.num_free * allocator.page_size)
    table = PageTable(allocator)
    times_ms: dict[int, float] = {}
    began = time.perf_counter()
    try:
        table.reserve(min(largest, _TREE_NODES))
        steps = _Steps(runner, table, allocator.page_size)
        for num_rows in _ROWS:
            if num_rows > largest or max(times_ms.values(), default=0.0) > _LONG_MS:
                break
            steps.time_ms(num_rows, temperature=1.0)  # the first of a kind is slow
            times_ms[num_rows] = steps.time_ms(num_rows)
            if times_ms[num_rows] > _LONG_MS:  # by chance, it may be
                times_ms[num_rows] = min(times_ms[num_rows], steps.time_ms(num_rows))
        for _ in range(_MORE_ROUNDS):
            if (time.perf_counter() - began) * 1e3 > _MOST_MS:
                break
            for num_rows, best_ms in times_ms.items():
                times_ms[num_rows] = min(best_ms, steps.time_ms(num_rows))
    finally:
        table.close()
    return StepTimes(list(times_ms), list(times_ms.values()))


@dataclass(frozen=True, slots=True)
class _Steps:
    runner: StepRunner
    table: PageTable
    page_size: int

    def time_ms(self, num_rows: int, *, temperature: float = 0.0) -> float:
        """Runs a step of chains, without a prompt."""
        sizes = [min(_TREE_NODES, num_rows - start) for start in range(0, num_rows, _TREE_NODES)]
        builder = StepBuilder(self.page_size)
        for size in sizes:
            builder.add_tree(self.table, DraftTree.chain([0] * size), 0)
        sampling = sampling_batch([SamplingParams(temperature=temperature)] * len(sizes))
        started = time.perf_counter()
        self.runner.run(builder.build(), sampling)
        return (time.perf_counter() - started) * 1e3
