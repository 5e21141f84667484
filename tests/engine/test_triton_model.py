"""A whole model on the Triton backend against the reference: interpreted on the CPU, compiled on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from engine.pages import PageAllocator, PageTable
from engine.plan import StepBuilder, StepPlan, compaction
from engine.target_model import StepOutput, TargetModel
from engine.tp import TpGroup
from kernels.backends import load_ops
from paceline.tree import DraftTree
from tests.support.triton_devices import INTERPRETED

pytest.importorskip("triton", reason="triton is not installed here")

if TYPE_CHECKING:
    from transformers import LlamaConfig

PAGE_SIZE, NUM_PAGES = 4, 16
DEVICES = [
    pytest.param("cpu", marks=[INTERPRETED, pytest.mark.slow]),
    pytest.param("cuda", marks=pytest.mark.gpu),
]


def _plans() -> list[StepPlan]:
    """Two prompts, one in chunks; then a tree beside the second chunk; then a node past the tree's compaction."""
    allocator = PageAllocator(NUM_PAGES, PAGE_SIZE)
    tables = [PageTable(allocator) for _ in range(2)]
    for table in tables:
        table.reserve(24)
    first, second, third = (StepBuilder(PAGE_SIZE) for _ in range(3))
    first.add_chunk(tables[0], np.arange(5), 0, sample=True)
    first.add_chunk(tables[1], np.arange(20, 27), 0, sample=False)
    second.add_tree(tables[0], DraftTree(np.array([7, 3, 9, 4]), np.array([-1, 0, 0, 2])), 5)
    second.add_chunk(tables[1], np.arange(30, 33), 7, sample=True)
    third.move(*compaction(tables[0], 5, np.array([0, 2, 3])))
    third.add_tree(tables[0], DraftTree.single(11), 8)
    return [builder.build() for builder in (first, second, third)]


def _run(model: TargetModel) -> list[StepOutput]:
    cache = model.make_cache(NUM_PAGES, PAGE_SIZE)
    outputs = [model.step(plan, cache) for plan in _plans()]
    return [StepOutput(*(part.cpu() for part in (o.logits, o.features) if part is not None)) for o in outputs]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("has_norms", [False, True])
def test_chunks_trees_and_moves_give_the_reference_s_logits_and_features(
    head_target_config: LlamaConfig,
    make_head: Callable,
    save_random_checkpoint: Callable,
    tmp_path: Path,
    device: str,
    has_norms: bool,
) -> None:
    from transformers import LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    config, model_class = head_target_config, LlamaForCausalLM
    if has_norms:
        config, model_class = Qwen3Config(**{**config.to_diff_dict(), "model_type": "qwen3"}), Qwen3ForCausalLM
    save_random_checkpoint(model_class, config, tmp_path / "target")
    outputs = []
    for name, at in (("reference", "cpu"), ("triton", device)):
        ops, place = load_ops(name, at), torch.device(at)
        model = TargetModel.load(
            tmp_path / "target",
            head_path=make_head(name).path,
            dtype=torch.float32,
            ops=ops,
            device=place,
            tp=TpGroup(),
        )
        outputs.append(_run(model))
    for expected, got in zip(*outputs, strict=True):
        torch.testing.assert_close(got.logits, expected.logits, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(got.features, expected.features, rtol=1e-4, atol=1e-4)
