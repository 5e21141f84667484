"""A step's trees by C: what the arrays of engine.plan come to."""

import numpy as np
import pytest

from engine.plan import StepBuilder, TreeRows
from kernels.ops import WalkResult
from kernels.step_trees import (
    COMMITTED_LEN,
    LIMIT,
    NUM_FACTS,
    PENDING_LEN,
    PENDING_TREE,
    RequestTable,
    StepTrees,
    commit_walk,
    load_step_trees,
)

PAGE_SIZE = 4


@pytest.fixture(scope="module")
def step_trees() -> StepTrees:
    found = load_step_trees()
    if found is None:
        pytest.skip("the C extension was not built")
    return found


def random_trees(sizes: tuple[int, ...]) -> list[bytes]:
    rng = np.random.default_rng(sum(sizes))
    parents = [[-1, *(rng.integers(0, node) for node in range(1, size))] for size in sizes]
    return [np.array([rng.integers(0, 90, len(part)), part], np.int32).tobytes() for part in parents]


def table_of(num_requests: int, *, context_length: int = 160) -> RequestTable:
    rng = np.random.default_rng(num_requests)
    facts = np.zeros((NUM_FACTS, num_requests), np.int64)
    facts[COMMITTED_LEN] = rng.integers(1, 60, num_requests)
    facts[PENDING_LEN] = rng.integers(0, 2, num_requests)
    facts[PENDING_TREE] = np.where(rng.random(num_requests) < 0.5, np.arange(num_requests), -1)
    facts[LIMIT] = facts[COMMITTED_LEN] + 30
    tokens = rng.integers(0, 90, (num_requests, context_length)).astype(np.int32)
    page_ids = rng.integers(0, 1000, (num_requests, context_length // PAGE_SIZE + 16)).astype(np.int32)
    return RequestTable(tokens, page_ids, facts)


@pytest.mark.parametrize(
    ("sizes", "num_others"), [((), 0), ((), 1), ((16,), 0), ((1, 1, 1), 2), ((6, 1, 10), 3), ((64, 8, 8, 64), 0)]
)
def test_a_step_has_the_integers_that_arrays_come_to(step_trees, sizes, num_others):
    table, trees, b = table_of(len(sizes) + num_others + 2), random_trees(sizes), len(sizes) + num_others
    rows = np.random.default_rng(0).permutation(len(table.tokens))[:b].tolist()
    base = (table.facts[COMMITTED_LEN] + table.facts[PENDING_LEN])[rows]
    drawn_by = table.facts[PENDING_TREE][rows]
    newest = np.where(drawn_by < 0, table.tokens[rows, base], -1 - drawn_by)[len(sizes) :]
    columns = [np.frombuffer(tree, np.int32).reshape(2, -1) for tree in trees]
    columns += [np.array([[token], [-1]], np.int32) for token in newest]
    tokens, parents = np.concatenate([np.zeros((2, 0), np.int32), *columns], axis=1)
    num_nodes = np.array([part.shape[1] for part in columns], np.int64)
    pages = [table.page_ids[row, :count] for row, count in zip(rows, -(-(base + num_nodes) // PAGE_SIZE), strict=True)]
    builder = StepBuilder(PAGE_SIZE)
    builder.add_trees(TreeRows(tokens, parents, num_nodes, base, np.concatenate([np.zeros(0, np.int32), *pages])))
    expected, step = builder.build(), step_trees.plan(table, rows, trees, page_size=PAGE_SIZE)
    pairs = [(step.positions, expected.positions), (step.slots, expected.slots), (step.rows, expected.logit_rows)]
    for ours, theirs in ((step.attention, expected.attention), (step.trees, expected.trees)):
        pairs += [(getattr(ours, name), getattr(theirs, name)) for name in theirs.__dataclass_fields__]
    pairs.append((step.heads, np.array([rows, base, 29 - table.facts[PENDING_LEN][rows]], np.int64)))
    for value, wanted in pairs:
        np.testing.assert_array_equal(value, wanted)
        assert not isinstance(wanted, np.ndarray) or value.dtype == wanted.dtype


@pytest.mark.parametrize(
    ("expected", "page_size"), [((6, 10), 4), ((10, 6), 4), ((3, 13), 4), ((40, 6), 4), ((6, 10), 8)]
)
def test_a_step_that_was_laid_out_is_the_same_whatever_was_expected(step_trees, expected, page_size):
    table, trees, rows = table_of(4), random_trees((6, 10)), [3, 1]
    plain = step_trees.plan(table, rows, trees, page_size=PAGE_SIZE)
    base = plain.heads[1].copy()
    step_trees.lay_out(base, np.array(expected), page_size=page_size)
    laid, again = (step_trees.plan(table, rows, trees, page_size=PAGE_SIZE) for _ in range(2))
    for step in (laid, again):
        assert step.attention.page_size == PAGE_SIZE
        for ours, wanted in ((step, plain), (step.attention, plain.attention), (step.trees, plain.trees)):
            for name in getattr(wanted, "_fields", None) or wanted.__dataclass_fields__:
                if isinstance(getattr(wanted, name), np.ndarray):
                    np.testing.assert_array_equal(getattr(ours, name), getattr(wanted, name))
    assert not np.shares_memory(laid.heads, again.heads)


def tree_of(*parents: int) -> bytes:
    return np.array([range(len(parents)), parents], np.int32).tobytes()


@pytest.mark.parametrize(
    ("tree", "committed_len", "rows"),
    [
        (tree_of(-1, 1), 3, [0]),
        (tree_of(0, 0), 3, [0]),
        (tree_of(-1, -1), 3, [0]),
        (tree_of(-1, 0), -1, [0]),
        (tree_of(-1, 0), 20, [0]),
        (tree_of(-1, 0), 2**62, [0]),
        (tree_of(-1, 0), 7, [0]),
        (tree_of(-1, 0), 3, [2]),
        (tree_of(-1, 0), 3, [-1]),
        (tree_of(-1, 0), 3, [2**70]),
        (tree_of(-1, 0), 3, []),
        (tree_of(-1, *[0] * 64), 3, [0]),
        (tree_of(-1, 0)[:-4], 3, [0]),
        (b"", 3, [0]),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_past_it_is_read(step_trees, tree, committed_len, rows):
    facts = np.zeros((NUM_FACTS, 2), np.int64)
    facts[COMMITTED_LEN] = committed_len
    table = RequestTable(np.zeros((2, 12), np.int32), np.zeros((2, 2), np.int32), facts)
    with pytest.raises((IndexError, ValueError, OverflowError)):
        step_trees.plan(table, rows, [tree], page_size=PAGE_SIZE)


def test_columns_of_different_requests_are_refused(step_trees):
    table = RequestTable(np.zeros((2, 12), np.int32), np.zeros((2, 2), np.int32), np.zeros((NUM_FACTS, 2), np.int64))
    for wrong in (
        table._replace(page_ids=np.zeros((1, 2), np.int32)),
        table._replace(facts=np.zeros((NUM_FACTS, 1), np.int64)),
        table._replace(facts=np.zeros((NUM_FACTS - 1, 2), np.int64)),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            step_trees.plan(wrong, [0], [], page_size=PAGE_SIZE)
    with pytest.raises(ValueError, match="one slot"):
        step_trees.plan(table, [0], [], page_size=0)
    with pytest.raises(TypeError):
        step_trees.plan(table, [0], ["nodes"], page_size=PAGE_SIZE)


def commit_table() -> RequestTable:
    return RequestTable(np.zeros((4, 20), np.int32), np.zeros((4, 5), np.int32), np.zeros((NUM_FACTS, 4), np.int64))


@pytest.mark.parametrize("allowed", [[9, 9, 9], [9, 3, 9]])
def test_a_walk_is_committed_as_arrays_commit_it(step_trees, allowed):
    walk = WalkResult(np.array([0, 2, 3], np.int32), np.arange(8, dtype=np.int32), np.arange(50, 58, dtype=np.int32))
    heads = np.array([[3, 0, 1], [4, 0, 16], allowed])
    ours, theirs = commit_table(), commit_table()
    advance = step_trees.commit(ours, heads, walk, step=7)
    assert advance == commit_walk(theirs, heads, walk, step=7)
    assert advance.starts == [0, 1, 4]
    assert advance.is_full is (3 in allowed)
    assert (advance.path, advance.tokens) == (list(range(8)), list(range(50, 58)))
    for value, wanted in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(value, wanted)
    assert ours.tokens[1].tolist() == [0] * 17 + [54, 55, 56]


@pytest.mark.parametrize(
    ("rows", "base", "accept_length"),
    [
        ([4], [0], [1]),
        ([-1], [0], [1]),
        ([0], [-1], [1]),
        ([0], [2**40], [1]),
        ([0], [0], [2]),
        ([0], [0], [0]),
        ([0], [0], [-1]),
        ([0, 1], [0, 0], [1]),
        ([0, 1], [0, 0], [0, 2**31 - 1]),
    ],
)
def test_a_walk_that_does_not_fit_is_refused_and_changes_nothing(step_trees, rows, base, accept_length):
    walk = WalkResult(np.array(accept_length, np.int32), np.zeros(2, np.int32), np.ones(2, np.int32))
    table = commit_table()
    with pytest.raises(ValueError, match="do not fit"):
        step_trees.commit(table, np.array([rows, base, [9] * len(rows)]), walk, step=1)
    assert not table.tokens.any() and not table.facts.any()


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
