"""Growth on the device against TreeGrowth, the same levels in numpy, with ties made on purpose."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.draft_batch import min_score
from engine.tree_growth import TreeGrowth
from kernels.growth import BeamRows, GrowingTrees, GrowthInputs, GrowthShape
from kernels.reference.ops import ReferenceOps
from paceline.tree import DraftTree
from paceline.types import TreeShape

VOCAB, DRAFT_VOCAB = 300, 200
SHAPES = [
    TreeShape(5, 4, 16),
    TreeShape(7, 3, 20),
    TreeShape(5, 1, 6),
    TreeShape(5, 1, 3),
    TreeShape(9, 8, 64),
    TreeShape(3, 7, 2),
    TreeShape(1, 5, 6),
    TreeShape(1, 1, 2),
    TreeShape(2, 20, 64),
]
COARSE = np.array((0.0, 0.0, -0.5, -1.0, -20.0), np.float32)


def children(rng: np.random.Generator, num_rows: int, topk: int, *, tied: bool) -> tuple[np.ndarray, np.ndarray]:
    """Descending scores and distinct draft ids, as a ranking gives them."""
    drawn = rng.choice(COARSE, (num_rows, topk)) if tied else -rng.exponential(1.0, (num_rows, topk))
    ids = rng.permuted(np.tile(np.arange(DRAFT_VOCAB), (num_rows, 1)), axis=1)[:, :topk]
    return -np.sort(-drawn.astype(np.float32), axis=1), ids


def target_ids() -> np.ndarray:
    return np.random.default_rng(5).permutation(VOCAB)[:DRAFT_VOCAB]


def new_trees(shape: GrowthShape, num_sessions: int, target_ids: Tensor) -> GrowingTrees:
    """With inputs of zeros."""

    def zeros(*size: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.zeros(size, dtype=dtype, device=target_ids.device)

    num_rows = num_sessions * shape.topk
    inputs = GrowthInputs(
        num_steps=zeros(num_sessions) + shape.num_steps,
        topk=zeros(num_sessions) + shape.topk,
        num_nodes=zeros(num_sessions) + shape.num_nodes,
        min_score=zeros(num_sessions, dtype=torch.float64) - torch.inf,
        roots=zeros(num_sessions),
        committed_len=zeros(num_sessions),
        scratch_slots=zeros(shape.num_scratch, num_sessions),
        target_ids=target_ids,
    )
    rows = BeamRows(*(zeros(num_rows) for _ in range(5)), zeros(num_sessions, dtype=torch.int32))
    return GrowingTrees.allocate(shape, inputs, rows)


class Levels:
    """One growth on the device and one in numpy, fed the same children."""

    def __init__(self, ops: ReferenceOps, shape: TreeShape, num_sessions: int, *, seed: int, tied: bool) -> None:
        self._rng = np.random.default_rng(seed)
        self._ops, self._tied, self._topk = ops, tied, shape.eagle_topk
        self._target_ids = target_ids()
        self.device = new_trees(
            GrowthShape(shape.num_steps, shape.eagle_topk, shape.num_draft_tokens),
            num_sessions,
            torch.from_numpy(self._target_ids).to(ops.device),
        )
        self.host = TreeGrowth([shape] * num_sessions)
        self.num_sessions = num_sessions
        self.committed = self._rng.integers(5, 99, num_sessions)
        self.slots = self._rng.permutation(64 * num_sessions)[: self.device.shape.num_scratch * num_sessions]
        self.slots = self.slots.reshape(-1, num_sessions)
        self.roots = self._rng.integers(0, VOCAB, num_sessions)
        inputs = self.device.inputs
        inputs.committed_len.copy_(torch.from_numpy(self.committed))
        inputs.scratch_slots.copy_(torch.from_numpy(self.slots))
        inputs.roots.copy_(torch.from_numpy(self.roots))

    def add(self, level: int) -> None:
        scores, ids = children(self._rng, self.num_sessions * (self._topk if level else 1), self._topk, tied=self._tied)
        on_device = (torch.from_numpy(array).to(self._ops.device) for array in (scores, ids))
        self._ops.grow_beam(self.device, *on_device, level)
        (self.host.add if level else self.host.start)(scores, self._target_ids[ids])

    def trees(self) -> list[DraftTree]:
        """The device's, checked to be those of numpy."""
        self._ops.choose_nodes(self.device)
        wanted = self.host.trees(self.roots.tolist())
        num_nodes = self.device.shape.num_nodes
        for row, tree in zip(self.device.nodes.cpu().numpy(), wanted, strict=True):
            assert row[0] == tree.num_nodes
            assert row[1 : 1 + row[0]].tolist() == tree.tokens.tolist()
            assert row[1 + num_nodes : 1 + num_nodes + row[0]].tolist() == tree.parents.tolist()
        return wanted


def check_rows(levels: Levels, level: int) -> None:
    beam = levels.host.next_beam()
    assert beam is not None
    rows, num_rows = levels.device.rows, len(beam.tokens)

    def read(tensor: Tensor) -> list[int]:
        return tensor[:num_rows].cpu().tolist()

    assert read(rows.tokens) == beam.tokens.tolist()
    assert read(rows.ancestors) == beam.ancestors.view(np.int64).tolist()
    # A row of the forward before: of the first beam that is one a session, in both.
    first = np.repeat(np.arange(levels.num_sessions), num_rows // levels.num_sessions)
    assert read(rows.parent_rows) == (beam.parent_row if level else first).tolist()
    assert read(rows.positions) == (levels.committed[beam.session] + level).tolist()
    assert read(rows.slots) == levels.slots[beam.local, beam.session].tolist()
    assert set(read(rows.local_len)[: levels.num_sessions]) == {num_rows // levels.num_sessions * (level + 1)}


def grow(ops: ReferenceOps, shape: TreeShape, num_sessions: int, *, seed: int, tied: bool) -> None:
    levels = Levels(ops, shape, num_sessions, seed=seed, tied=tied)
    for level in range(shape.num_steps):
        levels.add(level)
        if level + 1 < shape.num_steps:
            check_rows(levels, level)
    levels.trees()


def interpreted() -> ReferenceOps:
    from kernels.triton_ops.ops import TritonOps

    return TritonOps("cpu")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "apart"])
def test_torch_grows_the_trees_that_numpy_grows(shape: TreeShape, tied: bool) -> None:
    for seed in range(4):
        grow(ReferenceOps(), shape, 1 + 2 * seed, seed=seed, tied=tied)


@pytest.mark.parametrize("shape", SHAPES[:8], ids=str)
def test_triton_grows_the_trees_that_numpy_grows(shape: TreeShape) -> None:
    grow(interpreted(), shape, 2, seed=1, tied=True)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [*SHAPES, TreeShape(2, 62, 64)], ids=str)
def test_triton_on_the_gpu_grows_the_trees_that_numpy_grows(shape: TreeShape) -> None:
    from kernels.triton_ops.ops import TritonOps

    for tied in (True, False):
        for num_sessions in (1, 3, 64):
            grow(TritonOps("cuda"), shape, num_sessions, seed=num_sessions, tied=tied)


def coarse_children(seed: int, tokens: list[int], width: int) -> tuple[np.ndarray, np.ndarray]:
    """The best children of each token: scores that often tie, and draft ids."""
    scores, ids = [], []
    for token in tokens:
        rng = np.random.default_rng([seed, token])
        scores.append(-np.sort(-rng.choice(COARSE, 8))[:width])
        ids.append(rng.permutation(DRAFT_VOCAB)[:width])
    return np.stack(scores), np.stack(ids)


def grow_alone(shape: TreeShape, seed: int, root: int) -> DraftTree:
    growth, known = TreeGrowth([shape]), target_ids()
    scores, ids = coarse_children(seed, [root], shape.eagle_topk)
    growth.start(scores, known[ids])
    while (beam := growth.next_beam()) is not None:
        scores, ids = coarse_children(seed, beam.tokens.tolist(), shape.eagle_topk)
        growth.add(scores, known[ids])
    return growth.trees([root])[0]


@pytest.mark.parametrize("make_ops", [ReferenceOps, interpreted])
def test_smaller_shapes_within_a_larger_one_get_the_trees_they_get_alone(make_ops: Callable[[], ReferenceOps]) -> None:
    shapes = [TreeShape(4, 4, 20), TreeShape(2, 4, 9), TreeShape(4, 1, 4), TreeShape(1, 2, 3), TreeShape(3, 3, 2)]
    shapes += [TreeShape(4, 4, 20, 300), TreeShape(3, 4, 20, 600), TreeShape(2, 2, 5, 999)]
    ops, widest, num_sessions = make_ops(), GrowthShape(4, 4, 20), len(shapes)
    trees = new_trees(widest, num_sessions, torch.from_numpy(target_ids()))
    inputs = trees.inputs
    inputs.roots.copy_(torch.arange(num_sessions))
    inputs.num_steps.copy_(torch.tensor([s.num_steps for s in shapes]))
    inputs.topk.copy_(torch.tensor([s.eagle_topk for s in shapes]))
    inputs.num_nodes.copy_(torch.tensor([s.num_draft_tokens for s in shapes]))
    inputs.min_score.copy_(torch.tensor([min_score(s.min_path_permille) for s in shapes]))
    rows = torch.arange(num_sessions)
    for level in range(widest.num_steps):
        scores, ids = coarse_children(3, rows.tolist(), 4)
        ops.grow_beam(trees, torch.from_numpy(scores), torch.from_numpy(ids), level)
        rows = trees.rows.tokens
    ops.choose_nodes(trees)
    for row, shape, root in zip(trees.nodes.tolist(), shapes, range(num_sessions), strict=True):
        wanted = grow_alone(shape, 3, root)
        assert row[: 1 + row[0]] == [wanted.num_nodes, *wanted.tokens.tolist()]
        assert row[21 : 21 + row[0]] == wanted.parents.tolist()


@pytest.mark.parametrize("make_ops", [ReferenceOps, interpreted])
def test_children_without_a_finite_score_are_never_chosen(make_ops: Callable[[], ReferenceOps]) -> None:
    ops, shape = make_ops(), GrowthShape(3, 3, 8)
    trees = new_trees(shape, 2, torch.arange(DRAFT_VOCAB))
    trees.inputs.roots.fill_(7)
    for level in range(shape.num_steps):
        num_rows = 6 if level else 2
        scores = torch.full((num_rows, 3), torch.nan)
        ids = torch.full((num_rows, 3), 2**40)
        if level == 0:
            scores[1], ids[1] = torch.tensor([-1.0, -2.0, -torch.inf]), torch.tensor([4, 5, -1])
        ops.grow_beam(trees, scores, ids, level)
    ops.choose_nodes(trees)
    assert trees.nodes[0].tolist() == [1, 7, *[-1] * 7, *[-1] * 8]
    assert trees.nodes[1].tolist() == [3, 7, 4, 5, *[-1] * 5, -1, 0, 0, *[-1] * 5]
