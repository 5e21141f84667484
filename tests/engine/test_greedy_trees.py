"""Trees that grow in one C call are those that grow level by level, and leave the same KV behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.drafter import Drafter, ExtendItem, ProposeParams
from engine.greedy_trees import greedy_trees
from engine.head_model import HeadModel
from engine.pages import PageAllocator, PageTable
from kernels.cpu_ops.native import NativeKernels
from kernels.cpu_ops.ops import CpuOps
from kernels.reference.ops import ReferenceOps
from paceline.tree import MAX_NODES
from tests.support.tiny_draft import CONTEXT, DRAFT_VOCAB, random_prompt, save_tiny_draft

_native = pytest.importorskip("kernels.cpu_ops._native", reason="the C extension is not built here")

PAGE_SIZE, NUM_PAGES = 4, 200
GREEDY = ProposeParams(4, 3, 10, seed=0, temperature=0.0)
ASKED = {
    "one tree": [GREEDY],
    "a chain": [replace(GREEDY, num_steps=5, eagle_topk=1, num_draft_tokens=6)],
    "one step": [replace(GREEDY, num_steps=1, eagle_topk=4, num_draft_tokens=3)],
    "64 nodes": [replace(GREEDY, num_steps=9, eagle_topk=8, num_draft_tokens=64)],
    "fewer candidates than nodes": [replace(GREEDY, num_steps=2, eagle_topk=3, num_draft_tokens=13)],
    "unlikely paths are left out": [replace(GREEDY, min_path_permille=100)],
    "many at once": [
        replace(GREEDY, num_steps=2, eagle_topk=5, num_draft_tokens=20),
        None,
        GREEDY,
        replace(GREEDY, num_steps=6, eagle_topk=2, num_draft_tokens=9),
    ],
}


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> HeadModel:
    pair = save_tiny_draft(Path(tmp_path_factory.mktemp("tiny")), head_dim=32)
    return pair.head(CpuOps(NativeKernels(_native, num_threads=2)), dtype=request.param)


def _items(asked: Sequence[ProposeParams | None], *, seed: int) -> list[ExtendItem]:
    allocator = PageAllocator(NUM_PAGES, PAGE_SIZE)
    items = []
    for i, propose in enumerate(asked):
        prompt = random_prompt(6 + 3 * i, seed=seed + i)
        table = PageTable(allocator)
        table.reserve(len(prompt.tokens) + 64)
        items.append(ExtendItem(table, 0, prompt.tokens, prompt.features, propose))
    return items


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("seed", range(3))
def test_trees_and_kv_are_those_of_a_growth_level_by_level(model: HeadModel, name: str, seed: int) -> None:
    results = []
    num_rows = sum(len(item.tokens) for item in _items(ASKED[name], seed=seed))
    for max_rows in (512, num_rows - 1):  # rows that pass one forward grow level by level
        cache = model.make_cache(NUM_PAGES, PAGE_SIZE)
        trees = Drafter(model, cache, max_rows=max_rows).extend(_items(ASKED[name], seed=seed))
        nodes = [None if tree is None else (tree.tokens.tolist(), tree.parents.tolist()) for tree in trees]
        results.append((nodes, cache.k, cache.v))
    (at_once, *kv), (by_level, *wanted_kv) = results
    assert at_once == by_level
    assert all(torch.equal(a, b) for a, b in zip(kv, wanted_kv, strict=True))


def test_only_the_c_kernels_grow_at_once(model: HeadModel, tmp_path: Path) -> None:
    items = _items([GREEDY], seed=0)
    trees = greedy_trees(items, [items[0].fitted_shape(DRAFT_VOCAB)], dtype=model.dtype)
    assert model.grow(trees, model.make_cache(NUM_PAGES, PAGE_SIZE)) is not None
    plain = save_tiny_draft(tmp_path).head(ReferenceOps(), dtype=model.dtype)
    assert plain.grow(trees, plain.make_cache(NUM_PAGES, PAGE_SIZE)) is None


@pytest.mark.parametrize(("change", "message"), [("token", "token 97 of row 2"), ("position", "position")])
def test_a_token_or_position_out_of_range_is_an_error_before_anything_is_written(
    model: HeadModel, change: str, message: str
) -> None:
    (item,) = _items([GREEDY], seed=0)
    if change == "token":
        item.tokens[2] = 97
    trees = greedy_trees([item], [item.fitted_shape(DRAFT_VOCAB)], dtype=model.dtype)
    if change == "position":
        trees.asks[0, 0] = 100_000
    cache = model.make_cache(NUM_PAGES, PAGE_SIZE)
    with pytest.raises(IndexError, match=message):
        model.grow(trees, cache)
    assert not cache.k.any()


@pytest.mark.parametrize("propose", [None, GREEDY], ids=["no tree", "a tree"])
def test_rows_stand_anywhere_from_the_first_position_to_the_last(
    model: HeadModel, propose: ProposeParams | None
) -> None:
    (item,) = _items([propose], seed=0)
    shapes = [None if propose is None else item.fitted_shape(DRAFT_VOCAB)]
    trees = greedy_trees([replace(item, tokens=item.tokens[:1], features=item.features[:1])], shapes, dtype=model.dtype)
    cache = model.make_cache(NUM_PAGES, PAGE_SIZE)
    num_positions = CONTEXT + MAX_NODES
    trees = replace(trees, page_ids=np.arange(NUM_PAGES, dtype=np.int32))
    last = num_positions - (1 if propose is None else propose.num_steps)
    for place in (0, last):
        trees.asks[0, 0] = place
        assert model.grow(trees, cache) is not None
    for place in (-1, last + 1):
        trees.asks[0, 0] = place
        with pytest.raises(IndexError, match="position"):
            model.grow(trees, cache)


def test_pages_outside_the_cache_are_refused(model: HeadModel) -> None:
    (item,) = _items([GREEDY], seed=0)
    trees = greedy_trees([item], [item.fitted_shape(DRAFT_VOCAB)], dtype=model.dtype)
    trees = replace(trees, page_ids=np.full_like(trees.page_ids, NUM_PAGES + 1))
    with pytest.raises(AssertionError):
        model.grow(trees, model.make_cache(NUM_PAGES, PAGE_SIZE))
