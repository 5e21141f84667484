"""Nodes that the head gives too little a chance are left out, and only those."""

from __future__ import annotations

import math

import numpy as np
import pytest

from engine.few_trees_growth import FewTreesGrowth
from engine.tree_growth import TreeGrowth
from paceline.tree import DraftTree
from paceline.types import TreeShape

VOCAB = 1000
ROOT = 1


class Chances:
    """Children of a path: tokens that no other path has, and falling probabilities that sum to less than 1."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def children(self, token: int, width: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng([self._seed, token])
        chances = np.sort(rng.dirichlet(np.full(width + 2, 0.5)))[::-1][:width] + 1e-6
        return np.log(chances).astype(np.float32), rng.permutation(VOCAB)[:width].astype(np.int32)

    def of_paths(self, tree: DraftTree, width: int) -> np.ndarray:
        """The probability of each node's path."""
        chances = np.ones(tree.num_nodes)
        for node in range(1, tree.num_nodes):
            parent = int(tree.parents[node])
            scores, tokens = self.children(int(tree.tokens[parent]), width)
            chances[node] = chances[parent] * math.exp(scores[tokens.tolist().index(int(tree.tokens[node]))])
        return chances

    def grow(self, *shapes: TreeShape) -> list[DraftTree]:
        """In arrays and in lists, which agree."""
        trees = self._grow_by(TreeGrowth(shapes), *shapes)
        for tree, other in zip(trees, self._grow_by(FewTreesGrowth(shapes), *shapes), strict=True):
            assert (tree.tokens.tolist(), tree.parents.tolist()) == (other.tokens.tolist(), other.parents.tolist())
        return trees

    def _grow_by(self, growth: TreeGrowth | FewTreesGrowth, *shapes: TreeShape) -> list[DraftTree]:
        scores, tokens = zip(*(self.children(ROOT, growth.width) for _ in shapes), strict=True)
        growth.start(np.array(scores), np.array(tokens))
        while (beam := growth.next_beam()) is not None:
            scores, tokens = zip(*(self.children(int(t), growth.width) for t in beam.tokens), strict=True)
            growth.add(np.array(scores), np.array(tokens))
        return growth.trees([ROOT] * len(shapes))


def paths(tree: DraftTree) -> list[tuple[int, ...]]:
    """By node."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("permille", [5, 60, 250, 900])
def test_a_tree_keeps_the_nodes_whose_paths_reach_the_probability(seed: int, permille: int) -> None:
    chances = Chances(seed)
    whole, cut = chances.grow(TreeShape(4, 4, 20), TreeShape(4, 4, 20, permille))
    likely = chances.of_paths(whole, 4) >= permille / 1000
    assert paths(cut) == [path for path, is_kept in zip(paths(whole), likely, strict=True) if is_kept]


def test_a_tree_without_a_likely_path_is_its_root() -> None:
    (tree,) = Chances(0).grow(TreeShape(3, 3, 10, 999))
    assert tree.tokens.tolist() == [ROOT]
