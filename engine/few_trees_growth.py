"""FewTreesGrowth: what TreeGrowth does, in lists: faster where the candidates are few."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from engine.draft_batch import min_score
from engine.tree_growth import Beam, TreeGrowth
from paceline.tree import DraftTree
from paceline.types import TreeShape

_MOST_CANDIDATES = 300  # of all trees together: 12 take 60 us and not 240, 136 take 240 and not 600, 400 the same


def make_growth(shapes: Sequence[TreeShape]) -> TreeGrowth | FewTreesGrowth:
    """The faster of the two. shapes: num_steps descending."""
    num_candidates = sum(TreeShape.max_nodes(s.num_steps, s.eagle_topk) - 1 for s in shapes)
    return FewTreesGrowth(shapes) if num_candidates <= _MOST_CANDIDATES else TreeGrowth(shapes)


class FewTreesGrowth:
    """As TreeGrowth: ``start``, then ``next_beam`` and ``add`` in turn, then ``trees``."""

    def __init__(self, shapes: Sequence[TreeShape]) -> None:
        """shapes: num_steps descending."""
        self.width = max(shape.eagle_topk for shape in shapes)
        self._trees = [_Growing(shape) for shape in shapes]
        self._level = 0
        self._active: list[_Growing] = []

    def start(self, log_probs: np.ndarray, tokens: np.ndarray) -> None:
        """The first candidates: the width best of each session, descending. [sessions, width] fp32 and int."""
        for row, (tree, scores, ids) in enumerate(zip(self._trees, log_probs.tolist(), tokens.tolist(), strict=True)):
            tree.start(scores, ids, row)

    def next_beam(self) -> Beam | None:
        """None when no session has steps left."""
        self._level += 1
        self._active = active = [tree for tree in self._trees if tree.num_steps > self._level]
        if not active:
            return None
        first_local = [(self._level - 1) * tree.topk for tree in active]
        for tree, local in zip(active, first_local, strict=True):
            tree.masks = [mask | 1 << local + place for place, mask in enumerate(tree.masks)]
        return Beam(
            session=np.array([r for r, tree in enumerate(active) for _ in range(tree.topk)]),
            tokens=np.array([tree.tokens[candidate] for tree in active for candidate in tree.beam], np.int32),
            parent_row=np.array([row for tree in active for row in tree.parent_rows]),
            local=np.array(
                [local + place for tree, local in zip(active, first_local, strict=True) for place in range(tree.topk)]
            ),
            ancestors=np.array([mask for tree in active for mask in tree.masks], np.uint64),
            num_sessions=len(active),
        )

    def add(self, log_probs: np.ndarray, tokens: np.ndarray) -> None:
        """The width best children of each row of the last beam, descending. [rows, width] fp32 and int."""
        paths = np.array([tree.scores[candidate] for tree in self._active for candidate in tree.beam], np.float32)
        scores, ids = (paths[:, None] + log_probs).tolist(), tokens.tolist()
        first_row = 0
        for tree in self._active:
            rows = slice(first_row, first_row + tree.topk)
            tree.add(scores[rows], ids[rows], first_row)
            first_row += tree.topk

    def trees(self, roots: Sequence[int]) -> list[DraftTree]:
        """The nodes that TreeGrowth chooses, in its order."""
        return [tree.choose(root) for tree, root in zip(self._trees, roots, strict=True)]


class _Growing:
    """One tree's candidates, in the order of levels, places and ranks."""

    def __init__(self, shape: TreeShape) -> None:
        self.num_steps, self.topk = shape.num_steps, shape.eagle_topk
        self.scores: list[float] = []  # fp32 values; -inf where the head gave no number
        self.tokens: list[int] = []
        self.beam: list[int] = []  # candidates
        self.parent_rows: list[int] = []  # of the beam
        self.masks = [0] * self.topk  # of the beam: the scratch nodes on the path
        self._parents: list[int] = []  # candidates, -1 the root
        self._most = shape.num_draft_tokens - 1
        self._least_score = float(np.float32(min_score(shape.min_path_permille)))

    def start(self, scores: list[float], tokens: list[int], row: int) -> None:
        topk = self.topk
        self._append(scores[:topk], tokens[:topk], -1)
        self.beam = list(range(topk))
        self.parent_rows = [row] * topk

    def add(self, scores: list[list[float]], tokens: list[list[int]], first_row: int) -> None:
        """scores, tokens: the children of each beam node; first_row: that node's, of the last forward."""
        topk, first = self.topk, len(self.scores)
        for candidate, path_scores, ids in zip(self.beam, scores, tokens, strict=True):
            self._append(path_scores[:topk], ids[:topk], candidate)
        best = sorted(range(first, len(self.scores)), key=self._rank)[:topk]
        places = [(candidate - first) // topk for candidate in best]
        self.beam = best
        self.parent_rows = [first_row + place for place in places]
        self.masks = [self.masks[place] for place in places]

    def choose(self, root: int) -> DraftTree:
        least = self._least_score
        fit = [i for i, score in enumerate(self.scores) if score >= least and math.isfinite(score)]
        chosen = sorted(sorted(fit, key=self._rank)[: self._most])
        node_of = {candidate: node for node, candidate in enumerate(chosen, start=1)}
        node_of[-1] = 0
        tokens, parents = self.tokens, self._parents
        return DraftTree.grown(
            np.array([root, *(tokens[i] for i in chosen)], np.int32),
            np.array([-1, *(node_of[parents[i]] for i in chosen)], np.int32),
        )

    def _append(self, scores: list[float], tokens: list[int], parent: int) -> None:
        self.scores += [-math.inf if math.isnan(score) else score for score in scores]
        self.tokens += tokens
        self._parents += [parent] * len(tokens)

    def _rank(self, candidate: int) -> float:
        return -self.scores[candidate]
