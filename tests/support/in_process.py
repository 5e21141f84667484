"""Target and head in this process: the tree that a draft without any history would propose."""

from __future__ import annotations

import functools

import numpy as np
import torch

from engine.drafter import Drafter, ExtendItem, ProposeParams
from engine.head_model import HeadModel
from engine.pages import PageAllocator, PageTable
from engine.plan import StepBuilder
from engine.target_model import TargetModel
from engine.tp import TpGroup
from kernels.backends import load_ops
from paceline.tree import DraftTree
from paceline.types import TreeShape
from tests.support.services import MODEL, ROOT

HEAD = ROOT / "models/smollm2-135m-eagle3"
PAGE_SIZE = 16
NUM_PAGES = 64


@functools.cache
def load_models() -> tuple[TargetModel, HeadModel]:
    """The default pair in fp32."""
    device = torch.device("cpu")
    ops = load_ops("auto", device)
    settings = {"dtype": torch.float32, "ops": ops, "device": device}
    target = TargetModel.load(MODEL, head_path=HEAD, tp=TpGroup(0, 1), **settings)
    return target, HeadModel.load(HEAD, MODEL, **settings)


def first_tree(ids: np.ndarray, shape: TreeShape) -> DraftTree:
    """Prefills ids[:-1] at once; ids[-1] is the root. Greedy."""
    target, head = load_models()
    features = prefill_features(target, ids[:-1])
    allocator = PageAllocator(NUM_PAGES, PAGE_SIZE)
    table = PageTable(allocator)
    table.reserve(len(ids) + 64)
    propose = ProposeParams(
        shape.num_steps,
        shape.eagle_topk,
        shape.num_draft_tokens,
        seed=0,
        temperature=0.0,
    )
    drafter = Drafter(head, head.make_cache(NUM_PAGES, PAGE_SIZE), max_rows=2048)
    (tree,) = drafter.extend([ExtendItem(table, 0, ids[1:], features, propose)])
    assert tree is not None
    return tree


def prefill_features(target: TargetModel, ids: np.ndarray) -> torch.Tensor:
    """[len(ids), Hd] fused features of a prefill in one chunk."""
    table = PageTable(PageAllocator(NUM_PAGES, PAGE_SIZE))
    table.reserve(len(ids))
    builder = StepBuilder(PAGE_SIZE)
    builder.add_chunk(table, ids, 0, sample=False)
    features = target.step(builder.build(), target.make_cache(NUM_PAGES, PAGE_SIZE)).features
    assert features is not None
    return features.clone()
