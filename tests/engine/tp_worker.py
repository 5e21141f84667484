"""One rank of a tensor-parallel target: python tp_worker.py RANK SIZE PORT MODEL HEAD OUT. Rank 0 saves its results."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from engine.pages import PageAllocator, PageTable
from engine.plan import StepBuilder, StepPlan
from engine.target_model import TargetModel
from engine.tp import TpGroup, init_tp_group
from kernels.reference.ops import ReferenceOps
from paceline.tree import DraftTree
from tests.support.step_plans import single_rows

DRAWN = torch.tensor([3, 100])


def plans(vocab_size: int) -> list[StepPlan]:
    """A chunk without a sample; its last chunk beside another prompt; a tree beside a decode; nothing; a move; tokens
    that are drawn."""
    generator = np.random.default_rng(5)
    tokens = generator.integers(0, vocab_size, 20).astype(np.int32)
    allocator = PageAllocator(16, 4)
    first, second = PageTable(allocator), PageTable(allocator)
    first.reserve(30)
    second.reserve(16)
    builders = [StepBuilder(4) for _ in range(6)]
    builders[0].add_chunk(first, tokens[:8], 0, sample=False)
    builders[1].add_chunk(first, tokens[8:13], 8, sample=True)
    builders[1].add_chunk(second, tokens[13:], 0, sample=True)
    builders[2].add_tree(first, DraftTree(np.array([1, 2, 3, 4]), np.array([-1, 0, 0, 2])), 13)
    builders[2].add_tree(second, DraftTree.single(7), 7)
    builders[4].move(first.slots(15, 17), first.slots(14, 16))
    builders[4].add_tree(first, DraftTree.single(9), 16)
    builders[5].add_trees(single_rows(first, -2, 17))
    builders[5].add_trees(single_rows(second, -1, 8))
    return [builder.build() for builder in builders]


def run(tp: TpGroup, model_path: Path, head_path: Path) -> dict[str, np.ndarray]:
    """Rank 0's logits and features of each step; followers get {} and learn each plan by broadcast."""
    torch.set_num_threads(1)
    assert tp.least(np.array([5 + tp.rank, 5 - tp.rank])).tolist() == [5, 6 - tp.size]
    model = TargetModel.load(
        model_path, head_path=head_path, dtype=torch.float32, ops=ReferenceOps(), device=torch.device("cpu"), tp=tp
    )
    cache = model.make_cache(16, 4)
    results: dict[str, np.ndarray] = {}
    if tp.rank > 0:
        assert cache.features is None
        while len(packed := tp.broadcast_plan()):
            output = model.step(StepPlan.unpack(packed), cache)
            assert output.logits is None
            assert output.features is None
        return results
    for i, plan in enumerate(plans(model.config.vocab_size)):
        output = model.step(StepPlan.unpack(tp.broadcast_plan(plan.pack())), cache, drawn=DRAWN)
        assert output.logits is not None
        assert output.features is not None
        results |= {f"logits {i}": output.logits.numpy(), f"features {i}": output.features.numpy()}
    tp.broadcast_plan(np.zeros(0, np.int64))
    return results


def main() -> None:
    rank, size, port = map(int, sys.argv[1:4])
    model_path, head_path, out = map(Path, sys.argv[4:7])
    tp = init_tp_group(rank, size, init_method=f"tcp://127.0.0.1:{port}")
    try:
        results = run(tp, model_path, head_path)
        if rank == 0:
            np.savez(out, **results)
    finally:
        tp.close()


if __name__ == "__main__":
    main()
