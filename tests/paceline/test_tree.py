"""A DraftTree refuses what is no tree, and derives depths, masks and links from parents."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import WireError
from paceline.tree import MAX_NODES, DraftTree

GOLDEN = {
    (-1, 0, 0, 1, 2, 3, 4, 5): (
        [0, 1, 1, 2, 2, 3, 3, 4],
        [1, 3, 4, 5, 6, 7, -1, -1],
        [-1, 2, -1, -1, -1, -1, -1, -1],
    ),
    (-1, 0, 1, 1, 1, 1, 3, 6): (
        [0, 1, 2, 2, 2, 2, 3, 4],
        [1, 2, -1, 6, -1, -1, 7, -1],
        [-1, -1, 3, 4, 5, -1, -1, -1],
    ),
}


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    num_nodes = draw(st.integers(1, MAX_NODES))
    parents = [-1, *(draw(st.integers(0, i - 1)) for i in range(1, num_nodes))]
    return DraftTree(np.arange(100, 100 + num_nodes), np.array(parents))


@pytest.mark.parametrize("parents", GOLDEN)
def test_the_golden_vector_gives_the_published_depths_and_links(parents):
    tree = DraftTree(np.arange(8), np.array(parents))
    depths, first_child, next_sibling = GOLDEN[parents]
    assert tree.depths().tolist() == depths
    assert tree.first_child().tolist() == first_child
    assert tree.next_sibling().tolist() == next_sibling


@given(trees())
def test_links_walk_exactly_the_children_of_each_node(tree):
    first_child, next_sibling = tree.first_child(), tree.next_sibling()
    for node in range(tree.num_nodes):
        walked, child = [], int(first_child[node])
        while child >= 0:
            walked.append(child)
            child = int(next_sibling[child])
        assert walked == [i for i in range(tree.num_nodes) if tree.parents[i] == node]


@given(trees())
def test_an_ancestor_mask_has_the_bits_of_the_path_to_the_root(tree):
    masks, depths = tree.ancestors(), tree.depths()
    for node in range(tree.num_nodes):
        path, at = set(), node
        while at >= 0:
            path.add(at)
            at = int(tree.parents[at])
        assert {j for j in range(64) if int(masks[node]) >> j & 1} == path
        assert depths[node] == len(path) - 1


def test_a_single_node_is_plain_decoding():
    tree = DraftTree.single(7)
    assert (tree.tokens.tolist(), tree.parents.tolist(), tree.num_nodes) == ([7], [-1], 1)


def test_a_chain_is_rooted_at_its_first_token():
    tree = DraftTree.chain([5, 6, 5, 6])
    assert tree.parents.tolist() == [-1, 0, 1, 2]
    assert tree.depths().tolist() == [0, 1, 2, 3]


def test_cousins_may_carry_the_same_token():
    assert DraftTree(np.array([1, 2, 3, 4, 4]), np.array([-1, 0, 0, 1, 2])).num_nodes == 5


@pytest.mark.parametrize(
    ("tokens", "parents", "words"),
    [
        ([], [], "0 nodes; it must have 1 to 64"),
        (range(65), range(-1, 64), "65 nodes; it must have 1 to 64"),
        ([1, 2], [-1], "one parent a token"),
        ([[1, 2]], [[-1, 0]], "one parent a token"),
        ([1], [0], "root's parent is 0"),
        ([1, 2, 3], [-1, 2, 0], "a node's parent must come before it"),
        ([1, 2], [-1, 1], "a node's parent must come before it"),
        ([1, 2], [-1, -1], "a node's parent must come before it"),
        ([1, -2], [-1, 0], "negative token"),
        ([1, 2, 3, 2], [-1, 0, 0, 0], "two siblings carry the same token"),
    ],
)
def test_what_is_no_tree_is_refused(tokens, parents, words):
    with pytest.raises(WireError, match=words):
        DraftTree(np.array(list(tokens)), np.array(list(parents)))


def flat(trees: list[DraftTree]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    tokens, parents = (np.concatenate([getattr(tree, name) for tree in trees]) for name in ("tokens", "parents"))
    return tokens, parents, np.array([tree.num_nodes for tree in trees])


@given(st.lists(trees(), min_size=1, max_size=20))
def test_many_trees_at_once_are_those_of_each_alone(made: list[DraftTree]) -> None:
    again = DraftTree.many(*flat(made))
    assert [(tree.tokens.tolist(), tree.parents.tolist()) for tree in again] == [
        (tree.tokens.tolist(), tree.parents.tolist()) for tree in made
    ]


@pytest.mark.parametrize("number", [0, 7, 15])
@pytest.mark.parametrize(
    ("tokens", "parents", "message"),
    [
        ([5, 6], [0, 0], "the root's parent is 0"),
        ([5, 6, 7], [-1, -1, 0], "must come before it"),
        ([5, 6, 7], [-1, 2, 0], "must come before it"),
        ([5, -6], [-1, 0], "negative token"),
        ([5, 6, 6], [-1, 0, 0], "same token"),
        ([], [], "a tree has 0 nodes"),
        (list(range(65)), list(range(-1, 64)), "a tree has 65 nodes"),
    ],
)
def test_one_wrong_tree_among_many_is_refused(number: int, tokens: list[int], parents: list[int], message: str) -> None:
    good = DraftTree(np.array([5, 6, 7, 6]), np.array([-1, 0, 0, 1]))
    columns = [[good.tokens] * 16, [good.parents] * 16, [4] * 16]
    for column, value in zip(columns, (tokens, parents, len(tokens)), strict=True):
        column[number] = np.array(value, np.int32) if isinstance(value, list) else value
    with pytest.raises(WireError, match=message):
        DraftTree.many(np.concatenate(columns[0]), np.concatenate(columns[1]), np.array(columns[2]))
