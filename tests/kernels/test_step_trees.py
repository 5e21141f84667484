"""A step's trees by C: what the arrays of engine.plan come to."""

import numpy as np
import pytest

from engine.plan import StepBuilder, TreeRows
from kernels.ops import WalkResult
from kernels.step_trees import CommitRows, CommitTable, StepTrees, TreeTable, commit_walk, load_step_trees

PAGE_SIZE = 4


@pytest.fixture(scope="module")
def step_trees() -> StepTrees:
    found = load_step_trees()
    if found is None:
        pytest.skip("the C extension was not built")
    return found


def table_of(sizes: tuple[int, ...]) -> TreeTable:
    rng = np.random.default_rng(sum(sizes))
    parents = [np.array([-1, *(rng.integers(0, node) for node in range(1, size))], np.int32) for size in sizes]
    return TreeTable(
        tokens=rng.integers(0, 90, sum(sizes)).astype(np.int32),
        parents=np.concatenate([np.zeros(0, np.int32), *parents]),
        num_nodes=np.array(sizes, np.int64),
        committed_len=rng.integers(1, 60, len(sizes)),
        page_table=rng.integers(0, 1000, (len(sizes) + 2, 40)).astype(np.int32),
        table_rows=rng.permutation(len(sizes) + 2)[: len(sizes)],
        page_size=PAGE_SIZE,
    )


@pytest.mark.parametrize("sizes", [(), (1,), (16,), (1, 1, 1), (6, 1, 10), (64, 8, 8, 64)])
def test_a_step_has_the_integers_that_arrays_come_to(step_trees, sizes):
    table = table_of(sizes)
    num_pages = -(-(table.committed_len + table.num_nodes) // PAGE_SIZE)
    pages = [table.page_table[row, :count] for row, count in zip(table.table_rows, num_pages, strict=True)]
    builder = StepBuilder(PAGE_SIZE)
    columns = (table.tokens, table.parents, table.num_nodes, table.committed_len)
    builder.add_trees(TreeRows(*columns, np.concatenate([np.zeros(0, np.int32), *pages])))
    expected, step = builder.build(), step_trees.plan(table)
    pairs = [(step.positions, expected.positions), (step.slots, expected.slots), (step.rows, expected.logit_rows)]
    for ours, theirs in ((step.attention, expected.attention), (step.trees, expected.trees)):
        pairs += [(getattr(ours, name), getattr(theirs, name)) for name in theirs.__dataclass_fields__]
    for value, wanted in pairs:
        np.testing.assert_array_equal(value, wanted)
        assert not isinstance(wanted, np.ndarray) or value.dtype == wanted.dtype


@pytest.mark.parametrize(
    ("parents", "num_nodes", "committed_len", "table_rows"),
    [
        ([-1, 1], [2], [3], [0]),
        ([0, 0], [2], [3], [0]),
        ([-1, 0], [2], [-1], [0]),
        ([-1, 0], [2], [3], [1]),
        ([-1, 0], [2], [7], [0]),
        ([-1, 0], [3], [3], [0]),
        ([-1, 0], [1], [3], [0]),
        ([-1, 0], [2], [3, 3], [0]),
        ([-1] + [0] * 64, [65], [3], [0]),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_past_it_is_written(
    step_trees, parents, num_nodes, committed_len, table_rows
):
    table = TreeTable(
        tokens=np.zeros(len(parents), np.int32),
        parents=np.array(parents, np.int32),
        num_nodes=np.array(num_nodes),
        committed_len=np.array(committed_len),
        page_table=np.zeros((1, 2), np.int32),
        table_rows=np.array(table_rows),
        page_size=PAGE_SIZE,
    )
    with pytest.raises((IndexError, ValueError)):
        step_trees.plan(table)


def commit_table() -> CommitTable:
    return CommitTable(np.zeros((4, 20), np.int32), np.zeros(4, np.int64), np.zeros(4, np.int64))


@pytest.mark.parametrize("allowed", [[9, 9, 9], [9, 3, 9]])
def test_a_walk_is_committed_as_arrays_commit_it(step_trees, allowed):
    walk = WalkResult(np.array([0, 2, 3], np.int32), np.arange(8, dtype=np.int32), np.arange(50, 58, dtype=np.int32))
    rows = CommitRows(np.array([3, 0, 1]), np.array([4, 0, 16]), np.array(allowed))
    ours, theirs = commit_table(), commit_table()
    advance = step_trees.commit(ours, rows, walk, step=7)
    assert advance == commit_walk(theirs, rows, walk, step=7)
    assert advance.starts == [0, 1, 4]
    assert advance.is_full is (3 in allowed)
    for value, wanted in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(value, wanted)
    assert ours.tokens[1].tolist() == [0] * 17 + [54, 55, 56]


@pytest.mark.parametrize(
    ("table_rows", "base", "accept_length"),
    [([4], [0], [1]), ([-1], [0], [1]), ([0], [-1], [1]), ([0], [0], [2]), ([0], [0], [0]), ([0, 1], [0], [1])],
)
def test_a_walk_that_does_not_fit_is_refused(step_trees, table_rows, base, accept_length):
    walk = WalkResult(np.array(accept_length, np.int32), np.zeros(2, np.int32), np.zeros(2, np.int32))
    rows = CommitRows(np.array(table_rows), np.array(base), np.array([9]))
    with pytest.raises(ValueError, match="do not fit"):
        step_trees.commit(commit_table(), rows, walk, step=1)


def test_columns_are_staged_with_their_padding_and_nothing_past_it(step_trees):
    stage = np.full(20, -7, np.int64)
    layout = np.array([0, 4, 0, 8, 3, 9, 12, 2, 5])
    narrow = np.array([3, 4, -1], np.int32), np.array([1], np.int32)
    step_trees.stage(stage, layout, narrow, (np.array([2**40, 6]),))
    assert stage.tolist() == [3, 4, -1, 0, *[-7] * 4, 1, 9, 9, -7, 2**40, 6, *[-7] * 6]
    for wrong in (
        [0, 2, 0, 8, 3, 9, 12, 2, 5],
        [0, 4, 0, 18, 3, 9, 12, 2, 5],
        [-1, 4, 0, 8, 3, 9, 12, 2, 5],
        [0, 4, 0],
    ):
        with pytest.raises(ValueError, match="column"):
            step_trees.stage(stage, np.array(wrong), narrow, (np.array([2**40, 6]),))
