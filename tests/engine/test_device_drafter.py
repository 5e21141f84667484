"""The drafter that stays on the device against the one that grows its trees in numpy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.device_drafter import DeviceDrafter, DrafterLimits
from engine.draft_batch import ExtendItem, ProposeParams
from engine.drafter import Drafter
from engine.head_model import HeadModel
from engine.pages import PageAllocator, PageTable
from kernels.reference.ops import ReferenceOps
from paceline.tree import DraftTree
from paceline.types import TreeShape
from tests.support.eager_buffers import replay_by_calling
from tests.support.tiny_draft import (
    DRAFT_VOCAB,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    MLP,
    Prompt,
    random_prompt,
    save_tiny_draft,
)
from tests.support.triton_devices import INTERPRETED

PAGE_SIZE, NUM_PAGES = 4, 400
LIMITS = DrafterLimits(max_rows=48, max_sessions=9)
CAPTURED = (TreeShape(5, 1, 6), TreeShape(5, 4, 16))
GREEDY = ProposeParams(5, 4, 16, seed=0, temperature=0.0)
SAMPLED = replace(GREEDY, seed=2**63 + 5, temperature=1.3)
PARAMS = [
    GREEDY,
    replace(GREEDY, num_steps=5, eagle_topk=1, num_draft_tokens=6),
    replace(GREEDY, num_steps=2, eagle_topk=3, num_draft_tokens=5),
    replace(GREEDY, num_steps=1, eagle_topk=4, num_draft_tokens=4),
    SAMPLED,
    replace(SAMPLED, num_steps=3, eagle_topk=1, num_draft_tokens=4),
    replace(GREEDY, num_steps=9, eagle_topk=8, num_draft_tokens=64),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> HeadModel:
    return save_tiny_draft(Path(tmp_path_factory.mktemp("tiny"))).head(ReferenceOps())


@pytest.fixture
def allocator() -> PageAllocator:
    return PageAllocator(NUM_PAGES, PAGE_SIZE)


@pytest.fixture
def plain(model: HeadModel) -> Drafter:
    return Drafter(model, model.make_cache(NUM_PAGES, PAGE_SIZE), LIMITS.max_rows)


def new_drafter(model: HeadModel, limits: DrafterLimits = LIMITS) -> DeviceDrafter:
    drafter = DeviceDrafter(model, model.make_cache(NUM_PAGES, PAGE_SIZE), limits)
    drafter.capture(CAPTURED, replay_by_calling)
    return drafter


@pytest.fixture
def drafter(model: HeadModel) -> DeviceDrafter:
    return new_drafter(model)


def new_item(allocator: PageAllocator, prompt: Prompt, propose: ProposeParams | None, *, room: int = 64) -> ExtendItem:
    table = PageTable(allocator)
    table.reserve(len(prompt.tokens) + room)
    return ExtendItem(table, 0, prompt.tokens, prompt.features, propose)


def assert_same(tree: DraftTree | None, wanted: DraftTree | None) -> None:
    assert tree is not None and wanted is not None
    assert tree.tokens.tolist() == wanted.tokens.tolist()
    assert tree.parents.tolist() == wanted.parents.tolist()


@pytest.mark.parametrize("propose", PARAMS, ids=str)
def test_a_tree_is_the_one_that_grows_in_numpy(
    drafter: DeviceDrafter, plain: Drafter, allocator: PageAllocator, propose: ProposeParams
) -> None:
    item = new_item(allocator, random_prompt(11), propose)
    assert_same(drafter.extend([item])[0], plain.extend([item])[0])


def test_a_ragged_batch_of_shapes_and_temperatures_gets_the_trees_that_numpy_grows(
    drafter: DeviceDrafter, plain: Drafter, allocator: PageAllocator
) -> None:
    items = [new_item(allocator, random_prompt(2 + 3 * i, seed=i), propose) for i, propose in enumerate(PARAMS)]
    silent = new_item(allocator, random_prompt(30, seed=50), None)
    batch = [*items[:2], silent, *items[2:]]
    trees, wanted = drafter.extend(batch), plain.extend(batch)
    assert trees.pop(2) is None and wanted.pop(2) is None
    for tree, same in zip(trees, wanted, strict=True):
        assert_same(tree, same)


def test_rounds_follow_each_other_in_the_same_memory(
    drafter: DeviceDrafter, plain: Drafter, allocator: PageAllocator
) -> None:
    prompts = [random_prompt(40, seed=i) for i in range(5)]
    items = [new_item(allocator, prompt, None, room=64) for prompt in prompts]
    at = 0
    for num_rows in (7, 1, 3, 2, 9):
        stop = at + num_rows
        step = [
            replace(
                item,
                base_len=at,
                tokens=prompt.tokens[at:stop],
                features=prompt.features[at:stop],
                propose=PARAMS[i],
            )
            for i, (item, prompt) in enumerate(zip(items, prompts, strict=True))
        ]
        for tree, wanted in zip(drafter.extend(step), plain.extend(step), strict=True):
            assert_same(tree, wanted)
        at = stop


def test_rows_without_an_ask_are_in_the_cache_when_a_tree_is_asked_for(
    drafter: DeviceDrafter, plain: Drafter, allocator: PageAllocator
) -> None:
    prompt = random_prompt(60)
    item = new_item(allocator, prompt, None)
    for at in (0, 20, 40):
        part = prompt[at : at + 20]
        propose = GREEDY if at == 40 else None
        (tree,) = drafter.extend(
            [replace(item, base_len=at, tokens=part.tokens, features=part.features, propose=propose)]
        )
    assert_same(tree, plain.extend([replace(item, propose=GREEDY)])[0])


def test_more_sessions_and_rows_than_a_forward_holds_are_split(model: HeadModel, allocator: PageAllocator) -> None:
    items = [new_item(allocator, random_prompt(5 + i, seed=i), PARAMS[i % 3]) for i in range(9)]
    wanted = Drafter(model, model.make_cache(NUM_PAGES, PAGE_SIZE), 512).extend(items)
    narrow = new_drafter(model, DrafterLimits(max_rows=7, max_sessions=9))
    for tree, same in zip(narrow.extend(items), wanted, strict=True):
        assert_same(tree, same)


def test_a_table_without_room_for_scratch_gets_fewer_levels(
    drafter: DeviceDrafter, plain: Drafter, allocator: PageAllocator
) -> None:
    for room in (12, 9, 8, 4, 0):
        item = new_item(allocator, random_prompt(12), GREEDY, room=room)
        assert_same(drafter.extend([item])[0], plain.extend([item])[0])


def test_features_that_are_no_numbers_give_a_tree_of_the_root_and_leave_the_others_alone(
    drafter: DeviceDrafter, plain: Drafter, allocator: PageAllocator
) -> None:
    good = new_item(allocator, random_prompt(6), GREEDY)
    bad = new_item(allocator, Prompt(random_prompt(6).tokens, torch.full((6, 32), torch.nan)), GREEDY)
    wanted = plain.extend([good])[0]
    for _ in range(2):
        trees = drafter.extend([bad, good])
        assert_same(trees[0], DraftTree.single(int(bad.tokens[-1])))
        assert_same(trees[1], wanted)


def test_features_of_another_dtype_are_converted(
    drafter: DeviceDrafter, plain: Drafter, allocator: PageAllocator
) -> None:
    item = new_item(allocator, random_prompt(6), GREEDY)
    half = replace(item, features=item.features.bfloat16())
    assert_same(drafter.extend([half])[0], plain.extend([half])[0])


def test_an_empty_batch_is_no_round(drafter: DeviceDrafter) -> None:
    assert drafter.extend([]) == []


def test_tritons_kernels_grow_the_tree_that_numpy_grows(
    tmp_path: Path, plain: Drafter, allocator: PageAllocator
) -> None:
    from kernels.triton_ops.ops import TritonOps

    model = save_tiny_draft(tmp_path).head(TritonOps("cpu"))
    drafter = DeviceDrafter(model, model.make_cache(NUM_PAGES, PAGE_SIZE), DrafterLimits(max_rows=8, max_sessions=2))
    item = new_item(allocator, random_prompt(3), replace(SAMPLED, num_steps=2, eagle_topk=2, num_draft_tokens=5))
    assert_same(drafter.extend([item])[0], plain.extend([item])[0])


@pytest.mark.parametrize("at", [pytest.param("cpu", marks=INTERPRETED), pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_head_in_8_bits_guesses_nearly_as_the_head_itself(tmp_path: Path, allocator: PageAllocator, at: str) -> None:
    from kernels.triton_ops.ops import TritonOps

    tiny = save_tiny_draft(tmp_path)
    rounded, itself = (tiny.head(TritonOps(at, rounded_rows=rows), dtype=torch.float16) for rows in (64, 0))
    hidden = random_prompt(9).features.to(rounded.device, rounded.dtype)
    near, exact = rounded.logits(hidden), itself.logits(hidden)
    assert not torch.equal(near, exact)
    torch.testing.assert_close(near, exact, rtol=0, atol=0.02 * float(exact.abs().max()))
    heads = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    shapes = ((heads, 2 * HIDDEN), (HIDDEN, HEADS * HEAD_DIM), (2 * MLP, HIDDEN), (HIDDEN, MLP), (DRAFT_VOCAB, HIDDEN))
    assert rounded.weight_bytes - itself.weight_bytes == sum(rows * (width + 4) for rows, width in shapes)
    drafter = DeviceDrafter(
        rounded, rounded.make_cache(NUM_PAGES, PAGE_SIZE), DrafterLimits(max_rows=8, max_sessions=2)
    )
    (tree,) = drafter.extend([new_item(allocator, random_prompt(3), replace(GREEDY, num_steps=2, num_draft_tokens=5))])
    assert tree is not None and len(tree.tokens) == 5


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_replayed_graph_gives_the_trees_of_eager_launches(tmp_path: Path, dtype: torch.dtype) -> None:
    from engine.graph_capture import CudaCapture
    from kernels.backends import load_ops

    device = torch.device("cuda")
    model = save_tiny_draft(tmp_path).head(load_ops("auto", device), dtype=dtype)
    eager, graphs = (DeviceDrafter(model, model.make_cache(NUM_PAGES, PAGE_SIZE), LIMITS) for _ in range(2))
    eager.capture(CAPTURED, replay_by_calling)
    graphs.capture(CAPTURED, CudaCapture(device))
    allocator = PageAllocator(NUM_PAGES, PAGE_SIZE)
    prompts = [random_prompt(40, seed=i) for i in range(len(PARAMS))]
    tables = [new_item(allocator, prompt, None) for prompt in prompts]
    at = 0
    for num_rows in (7, 1, 3, 2, 9):
        stop = at + num_rows
        step = [
            replace(t, base_len=at, tokens=p.tokens[at:stop], features=p.features[at:stop].to(dtype), propose=params)
            for t, p, params in zip(tables, prompts, PARAMS, strict=True)
        ]
        for tree, wanted in zip(graphs.extend(step), eager.extend(step), strict=True):
            assert_same(tree, wanted)
        at = stop


@pytest.mark.gpu
def test_on_the_gpu_in_fp32_the_trees_are_those_of_the_cpu(tmp_path: Path, plain: Drafter) -> None:
    from engine.graph_capture import CudaCapture
    from kernels.backends import load_ops

    device = torch.device("cuda")
    model = save_tiny_draft(tmp_path).head(load_ops("auto", device))
    drafter = DeviceDrafter(model, model.make_cache(NUM_PAGES, PAGE_SIZE), LIMITS)
    drafter.capture(CAPTURED, CudaCapture(device))
    allocator = PageAllocator(NUM_PAGES, PAGE_SIZE)
    items = [new_item(allocator, random_prompt(2 + 3 * i, seed=i), propose) for i, propose in enumerate(PARAMS)]
    for tree, wanted in zip(drafter.extend(items), plain.extend(items), strict=True):
        assert_same(tree, wanted)


def test_the_trees_of_a_round_are_not_overwritten_by_the_next(drafter: DeviceDrafter, allocator: PageAllocator) -> None:
    first = drafter.extend([new_item(allocator, random_prompt(9, seed=1), GREEDY)])[0]
    assert first is not None
    kept = first.tokens.copy()
    drafter.extend([new_item(allocator, random_prompt(9, seed=2), GREEDY)])
    assert np.array_equal(first.tokens, kept)
