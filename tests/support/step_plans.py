"""Plans of steps as the requests of a service live them."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from engine.pages import PageAllocator, PageTable, pages_for
from engine.plan import StepBuilder, StepPlan, TreeRows, compaction
from paceline.tree import DraftTree

NUM_PAGES = 32
PAGE_SIZE = 4
_TREE = DraftTree(np.array([7, 3, 9, 4, 8, 2], np.int32), np.array([-1, 0, 0, 1, 2, 4], np.int32))


def mixed_plans() -> list[StepPlan]:
    """Chunks, decodes and trees, alone and together, with a compaction, of three requests whose tokens are below 60."""
    generator = np.random.default_rng(3)
    first, second, third = (generator.integers(0, 60, size).astype(np.int32) for size in (23, 9, 40))
    allocator = PageAllocator(NUM_PAGES, PAGE_SIZE)
    tables = [PageTable(allocator) for _ in range(3)]
    for table in (tables[0], tables[1], tables[0], tables[2]):
        table.reserve(table.capacity + 20)
    tables[2].reserve(40)
    builders = [StepBuilder(PAGE_SIZE) for _ in range(6)]
    builders[0].add_chunk(tables[0], first[:10], 0, sample=False)
    builders[1].add_chunk(tables[0], first[10:17], 10, sample=False)
    builders[1].add_chunk(tables[1], second, 0, sample=True)
    builders[2].add_tree(tables[1], DraftTree.single(5), 9)
    builders[2].add_chunk(tables[0], first[17:], 17, sample=True)
    builders[3].add_tree(tables[0], _TREE, 23)
    builders[3].add_tree(tables[1], DraftTree.chain([3, 1, 4]), 10)
    accepted = np.array([0, 2, 4, 5])
    builders[4].move(*compaction(tables[0], 23, accepted))
    builders[4].add_tree(tables[0], DraftTree.single(2), 27)
    builders[4].add_tree(tables[1], DraftTree.single(6), 13)
    builders[5].add_tree(tables[0], DraftTree.chain([1, 2]), 28)
    builders[5].add_chunk(tables[2], third[:31], 0, sample=False)
    return [builder.build() for builder in builders]


def single_rows(table: PageTable, token: int, committed_len: int) -> TreeRows:
    """A decode of one node. token: -1 - i for what tree i of the step before draws."""
    return TreeRows(
        tokens=np.array([token], np.int32),
        parents=np.array([-1], np.int32),
        num_nodes=np.array([1]),
        committed_len=np.array([committed_len]),
        page_ids=table.page_ids[: pages_for(committed_len + 1, table.page_size)],
    )


def assert_near(found: Tensor, wanted: Tensor, share: float) -> None:
    """No value differs by more than that share of the largest one wanted."""
    assert found.shape == wanted.shape
    if wanted.numel():
        largest = float(wanted.abs().max())
        difference = float((found.to(wanted) - wanted).abs().max())
        assert difference <= share * largest, f"{difference} of {largest}"
