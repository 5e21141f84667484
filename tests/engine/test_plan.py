"""One ragged step: positions, slots, masks and links of chunks and trees together."""

import numpy as np
import pytest

from engine.pages import PageAllocator, PageTable
from engine.plan import StepBuilder, StepPlan, compaction
from engine.tree_links import derive_links
from paceline.tree import DraftTree

GOLDEN_PARENTS = ([-1, 0, 0, 1, 2, 3, 4, 5], [-1, 0, 1, 1, 1, 1, 3, 6])


def golden_trees() -> list[DraftTree]:
    return [DraftTree(np.arange(8) + 100 * i, np.array(p)) for i, p in enumerate(GOLDEN_PARENTS)]


def new_table(allocator: PageAllocator, num_tokens: int) -> PageTable:
    table = PageTable(allocator)
    table.reserve(num_tokens)
    return table


def random_tree(rng: np.random.Generator, num_nodes: int) -> DraftTree:
    parents = np.array([-1] + [int(rng.integers(i)) for i in range(1, num_nodes)])
    return DraftTree(rng.permutation(1000)[:num_nodes], parents)


def mixed_plan() -> StepPlan:
    allocator = PageAllocator(32, 4)
    builder = StepBuilder(4)
    builder.add_tree(new_table(allocator, 13), golden_trees()[0], 5)
    builder.add_chunk(new_table(allocator, 7), np.arange(40, 44), 3, sample=False)
    builder.add_chunk(new_table(allocator, 9), np.arange(50, 52), 7, sample=True)
    builder.add_tree(new_table(allocator, 3), DraftTree.single(9), 2)
    builder.add_tree(new_table(allocator, 18), golden_trees()[1], 10)
    builder.move(np.array([3, 4]), np.array([1, 2]))
    return builder.build()


def test_the_golden_tree_vector_gives_the_published_positions_and_links():
    allocator = PageAllocator(32, 4)
    builder = StepBuilder(4)
    for tree, committed_len in zip(golden_trees(), (5, 10), strict=True):
        builder.add_tree(new_table(allocator, committed_len + 8), tree, committed_len)
    trees = builder.build().trees
    assert trees.node_indptr.tolist() == [0, 8, 16]
    assert trees.positions.tolist() == [5, 6, 6, 7, 7, 8, 8, 9, 10, 11, 12, 12, 12, 12, 13, 14]
    assert trees.first_child.tolist() == [1, 3, 4, 5, 6, 7, -1, -1, 1, 2, -1, 6, -1, -1, 7, -1]
    assert trees.next_sibling.tolist() == [-1, 2, -1, -1, -1, -1, -1, -1, -1, -1, 3, 4, 5, -1, -1, -1]


def test_links_of_many_random_trees_equal_those_of_each_tree_alone():
    rng = np.random.default_rng(0)
    trees = [random_tree(rng, int(n)) for n in [1, 64, *rng.integers(1, 65, 30)]]
    indptr = np.concatenate([[0], np.cumsum([t.num_nodes for t in trees])])
    links = derive_links(np.concatenate([t.parents for t in trees]), indptr)
    for tree, start, stop in zip(trees, indptr[:-1], indptr[1:], strict=True):
        alone = derive_links(tree.parents, np.array([0, tree.num_nodes]))
        assert (links.next_sibling[start:stop] == alone.next_sibling).all()
        assert (links.ancestors[start:stop] == alone.ancestors).all()
        assert (links.depths[start:stop] == tree.depths()).all()
        assert (links.ancestors[start:stop] == tree.ancestors()).all()
        assert (links.first_child[start:stop] == tree.first_child()).all()
        assert (links.next_sibling[start:stop] == tree.next_sibling()).all()


def test_a_step_mixes_chunks_and_trees_in_the_order_they_were_added():
    plan = mixed_plan()
    assert plan.num_rows == 8 + 4 + 2 + 1 + 8
    assert plan.attention.q_indptr.tolist() == [0, 8, 12, 14, 15, 23]
    assert plan.attention.prefix_len.tolist() == [5, 3, 7, 2, 10]
    assert plan.attention.local_len.tolist() == [8, 4, 2, 1, 8]
    assert plan.attention.is_causal.tolist() == [False, True, True, False, False]
    assert np.diff(plan.attention.page_indptr).tolist() == [4, 2, 3, 1, 5]
    assert plan.positions[8:15].tolist() == [3, 4, 5, 6, 7, 8, 2]
    assert (plan.attention.ancestors[8:14] == 0).all()
    assert plan.attention.ancestors[14] == 1


def test_only_trees_and_the_last_row_of_a_final_chunk_are_sampled():
    plan = mixed_plan()
    assert plan.logit_rows.tolist() == [*range(8), 13, 14, *range(15, 23)]
    assert plan.trees.node_indptr.tolist() == [0, 8, 9, 10, 18]
    assert plan.trees.tokens[8:10].tolist() == [51, 9]
    assert plan.trees.positions[8:10].tolist() == [8, 2]
    assert plan.trees.first_child[8:10].tolist() == [-1, -1]


def test_a_tree_node_has_the_slot_of_its_index_and_the_position_of_its_depth():
    allocator = PageAllocator(8, 4)
    table = new_table(allocator, 13)
    builder = StepBuilder(4)
    builder.add_tree(table, golden_trees()[0], 5)
    plan = builder.build()
    assert plan.slots.tolist() == table.slots(5, 13).tolist()
    assert plan.positions.tolist() == [5, 6, 6, 7, 7, 8, 8, 9]


def test_a_plan_survives_packing():
    plan = mixed_plan()
    again = StepPlan.unpack(plan.pack())
    for owner in ("attention", "trees"):
        for name in type(getattr(plan, owner)).__slots__:
            ours, theirs = getattr(getattr(plan, owner), name), getattr(getattr(again, owner), name)
            assert np.array_equal(ours, theirs), name
            assert np.asarray(ours).dtype == np.asarray(theirs).dtype, name
    for name in ("tokens", "positions", "slots", "logit_rows", "move_src", "move_dst"):
        assert np.array_equal(getattr(plan, name), getattr(again, name)), name
        assert getattr(plan, name).dtype == getattr(again, name).dtype, name


def test_the_64th_ancestor_bit_survives_packing():
    allocator = PageAllocator(8, 16)
    builder = StepBuilder(16)
    builder.add_tree(new_table(allocator, 64), DraftTree.chain(range(64)), 0)
    plan = StepPlan.unpack(builder.build().pack())
    assert int(plan.attention.ancestors[-1]) == 2**64 - 1


def test_an_empty_step_can_be_built_and_packed():
    plan = StepPlan.unpack(StepBuilder(16).build().pack())
    assert plan.num_rows == 0
    assert plan.trees.node_indptr.tolist() == [0]
    assert plan.attention.q_indptr.tolist() == [0]


def test_an_array_that_is_cut_off_does_not_unpack():
    with pytest.raises(ValueError, match="zip"):
        StepPlan.unpack(mixed_plan().pack()[:12])


def test_compaction_moves_a_path_to_its_own_positions():
    table = new_table(PageAllocator(8, 4), 16)
    src, dst = compaction(table, 5, np.array([0, 2, 4, 6]))
    assert src.tolist() == table.slots(0, 16)[[7, 9, 11]].tolist()
    assert dst.tolist() == table.slots(0, 16)[[6, 7, 8]].tolist()


def test_compaction_of_a_chain_moves_nothing():
    table = new_table(PageAllocator(8, 4), 16)
    src, dst = compaction(table, 5, np.array([0, 1, 2]))
    assert (src.tolist(), dst.tolist()) == ([], [])
