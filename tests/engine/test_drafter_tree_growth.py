"""The choice of a tree's nodes, in arrays and in lists, against a plain search, with fp32 ties made on purpose."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from engine.few_trees_growth import FewTreesGrowth
from engine.tree_growth import TreeGrowth
from paceline.tree import DraftTree
from paceline.types import TreeShape

ROOT = 1000


@dataclass
class Candidate:
    score: np.float32
    depth: int
    index: int
    token: int
    parent: Candidate | None

    def key(self) -> tuple[float, int, int]:
        return (-float(self.score), self.depth, self.index)

    def path(self) -> tuple[int, ...]:
        return (*(self.parent.path() if self.parent else ()), self.token)


class CoarseHead:
    """Children of a path: tokens and descending log-probabilities out of few values, so that scores often tie."""

    def __init__(self, seed: int, values: tuple[float, ...] = (0.0, 0.0, -0.5, -1.0, -20.0)) -> None:
        self._seed = seed
        self._values = np.array(values, np.float32)

    def children(self, path: tuple[int, ...], width: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng([self._seed, *path])
        return -np.sort(-rng.choice(self._values, width)), rng.permutation(200)[:width]


def search(head: CoarseHead, shape: TreeShape) -> list[Candidate]:
    """All candidates by the definition, one at a time."""
    k = shape.eagle_topk
    level = [Candidate(s, 1, i, int(t), None) for i, (s, t) in enumerate(zip(*head.children((), k), strict=True))]
    found, beam = list(level), level
    for depth in range(2, shape.num_steps + 1):
        level = []
        for node in beam:
            for score, token in zip(*head.children(node.path(), k), strict=True):
                level.append(
                    Candidate(np.float32(node.score + score), depth, len(found) + len(level), int(token), node)
                )
        found += level
        beam = sorted(level, key=Candidate.key)[:k]
    return found


def expected_tree(head: CoarseHead, shape: TreeShape) -> DraftTree:
    chosen = sorted(search(head, shape), key=Candidate.key)[: shape.num_draft_tokens - 1]
    chosen.sort(key=lambda c: c.index)
    local = {id(None): 0} | {id(c): i + 1 for i, c in enumerate(chosen)}
    parents = [-1, *(local[id(c.parent)] for c in chosen)]  # a KeyError here is a node without its parent
    return DraftTree(np.array([ROOT, *(c.token for c in chosen)]), np.array(parents))


def grow(heads: list[CoarseHead], shapes: list[TreeShape]) -> list[DraftTree]:
    """By both, which agree."""
    trees = grow_by(TreeGrowth(shapes), heads, shapes)
    for tree, other in zip(trees, grow_by(FewTreesGrowth(shapes), heads, shapes), strict=True):
        assert_equal(other, tree)
    return trees


def grow_by(growth: TreeGrowth | FewTreesGrowth, heads: list[CoarseHead], shapes: list[TreeShape]) -> list[DraftTree]:
    parts = [head.children((), growth.width) for head in heads]
    ragged = [head.children((), shape.eagle_topk) for head, shape in zip(heads, shapes, strict=True)]
    for (scores, tokens), (real_scores, real_tokens) in zip(parts, ragged, strict=True):
        scores[: len(real_scores)], tokens[: len(real_tokens)] = real_scores, real_tokens
    growth.start(np.stack([s for s, _ in parts]), np.stack([t for _, t in parts]))
    paths: list[tuple[int, ...]] = [()] * len(shapes)
    while (beam := growth.next_beam()) is not None:
        paths = [(*paths[row], int(token)) for row, token in zip(beam.parent_row, beam.tokens, strict=True)]
        check_masks(beam, paths)
        scores, tokens = np.full((len(paths), growth.width), 9.0, np.float32), np.zeros((len(paths), growth.width), int)
        for row, (session, path) in enumerate(zip(beam.session, paths, strict=True)):
            k = shapes[session].eagle_topk
            scores[row, :k], tokens[row, :k] = heads[session].children(path, k)
        growth.add(scores, tokens)
    return growth.trees([ROOT] * len(shapes))


def check_masks(beam, paths) -> None:
    for mask, local, path in zip(beam.ancestors, beam.local, paths, strict=True):
        bits = [j for j in range(64) if int(mask) >> j & 1]
        assert len(bits) == len(path)
        assert bits[-1] == local


SHAPES = [
    TreeShape(7, 4, 20),
    TreeShape(6, 8, 64),
    TreeShape(5, 1, 6),
    TreeShape(5, 4, 16),
    TreeShape(5, 1, 3),
    TreeShape(3, 7, 2),
    TreeShape(1, 5, 6),
    TreeShape(1, 1, 2),
]


def assert_equal(tree: DraftTree, wanted: DraftTree) -> None:
    assert tree.tokens.tolist() == wanted.tokens.tolist()
    assert tree.parents.tolist() == wanted.parents.tolist()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_best_nodes_are_chosen_though_scores_tie(shape):
    for seed in range(20):
        assert_equal(grow([CoarseHead(seed)], [shape])[0], expected_tree(CoarseHead(seed), shape))


def test_sessions_of_other_shapes_in_the_batch_change_nothing():
    heads = [CoarseHead(100 + i) for i in range(len(SHAPES))]
    for tree, head, shape in zip(grow(heads, SHAPES), heads, SHAPES, strict=True):
        assert_equal(tree, expected_tree(head, shape))


def test_a_child_as_likely_as_its_parent_never_comes_without_it():
    """All scores are equal, so that only depth and index decide: levels fill in order."""
    sure = CoarseHead(3, values=(0.0,))
    (tree,) = grow([sure], [TreeShape(4, 3, 10)])
    assert tree.depths().tolist() == [0, 1, 1, 1, 2, 2, 2, 2, 2, 2]
    assert_equal(tree, expected_tree(sure, TreeShape(4, 3, 10)))


def test_rounding_that_makes_a_child_tie_its_parent_keeps_the_parent():
    """-20 absorbs a step of 1e-7 in fp32: the child's score is the parent's."""
    head = CoarseHead(5, values=(-20.0, -1e-7))
    assert np.float32(-20.0) + np.float32(-1e-7) == np.float32(-20.0)
    for shape in (TreeShape(4, 2, 9), TreeShape(5, 3, 12)):
        assert_equal(grow([head], [shape])[0], expected_tree(head, shape))


def test_a_chain_is_every_step_of_its_only_path():
    (tree,) = grow([CoarseHead(8)], [TreeShape(6, 1, 7)])
    assert tree.parents.tolist() == [-1, 0, 1, 2, 3, 4, 5]


def test_a_full_tree_of_64_nodes_uses_the_last_ancestor_bit():
    shape = TreeShape(17, 4, 64)
    assert (shape.num_steps - 1) * shape.eagle_topk == 64
    (tree,) = grow([CoarseHead(9)], [shape])
    assert_equal(tree, expected_tree(CoarseHead(9), shape))
    assert tree.num_nodes == 64
