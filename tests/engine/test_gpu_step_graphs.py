"""Captured steps on a GPU: equal to eager ones and to the CPU's, without a wait or an allocation."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.device import computing_on
from engine.pages import PageAllocator, PageTable
from engine.plan import StepBuilder
from engine.pool import TargetCache
from engine.sampling import sampling_batch
from engine.target_model import TargetModel
from engine.tp import TpGroup
from kernels.backends import load_ops
from kernels.ops import PendingWalk
from paceline.tree import DraftTree
from paceline.types import SamplingParams
from tests.support.step_plans import NUM_PAGES, PAGE_SIZE, assert_near, mixed_plans, single_rows
from tests.support.tiny_target import TinyTarget, save_tiny_target

pytestmark = pytest.mark.gpu

MAX_ROWS = 80
PROMPT = [5, 9, 31, 7, 44, 23, 18]


@pytest.fixture
def tiny(tmp_path: Path) -> TinyTarget:
    return save_tiny_target(tmp_path)


def _load(tiny: TinyTarget, device: str, backend: str, dtype: torch.dtype = torch.float32) -> TargetModel:
    at = torch.device(device)
    return TargetModel.load(
        tiny.model_path, head_path=tiny.head_path, dtype=dtype, ops=load_ops(backend, at), device=at, tp=TpGroup()
    )


def _captured(model: TargetModel) -> TargetCache:
    cache = model.make_cache(NUM_PAGES, PAGE_SIZE)
    model.capture(cache, MAX_ROWS)
    return cache


@pytest.mark.parametrize(("dtype", "share"), [(torch.float32, 1e-4), (torch.bfloat16, 0.08)])
def test_captured_steps_give_what_eager_ones_give(tiny: TinyTarget, dtype: torch.dtype, share: float) -> None:
    model = _load(tiny, "cuda", "triton", dtype)
    captured, eager = _captured(model), model.make_cache(NUM_PAGES, PAGE_SIZE)
    for plan in mixed_plans():
        wanted, found = model.step(plan, eager), model.step(plan, captured)
        assert_near(found.logits, wanted.logits, share)
        assert_near(found.features, wanted.features, share)
        for ours, theirs in zip(captured.pools, eager.pools, strict=True):
            assert_near(ours[: captured.spare_slot], theirs[: eager.spare_slot], share)


def test_captured_steps_give_what_the_reference_gives_on_the_cpu(tiny: TinyTarget) -> None:
    model, reference = _load(tiny, "cuda", "triton"), _load(tiny, "cpu", "reference")
    cache, oracle = _captured(model), reference.make_cache(NUM_PAGES, PAGE_SIZE)
    for plan in mixed_plans():
        found, wanted = model.step(plan, cache), reference.step(plan, oracle)
        assert_near(found.logits, wanted.logits, 1e-4)
        assert_near(found.features, wanted.features, 1e-4)


def test_tokens_that_the_walk_before_draws_are_those_of_the_step(tiny: TinyTarget) -> None:
    model = _load(tiny, "cuda", "triton")
    cache = _captured(model)
    wanted = _greedy(model, cache)
    assert _greedy_ahead(model, cache, len(wanted)) == wanted
    assert _greedy_ahead(model, model.make_cache(NUM_PAGES, PAGE_SIZE), len(wanted)) == wanted


def test_greedy_tokens_equal_those_of_the_cpu(tiny: TinyTarget) -> None:
    model, reference = _load(tiny, "cuda", "triton"), _load(tiny, "cpu", "reference")
    assert _greedy(model, _captured(model)) == _greedy(reference, reference.make_cache(NUM_PAGES, PAGE_SIZE))


def test_a_graph_captured_on_one_thread_is_replayed_on_another(tiny: TinyTarget) -> None:
    model = _load(tiny, "cuda", "triton")
    cache = _captured(model)
    here = _greedy(model, cache)
    there: list[int] = []

    def step_there() -> None:
        with computing_on(torch.device("cuda")):
            there.extend(_greedy(model, cache))

    thread = threading.Thread(target=step_there)
    thread.start()
    thread.join()
    assert there == here


def test_a_captured_step_neither_waits_nor_allocates(tiny: TinyTarget) -> None:
    model = _load(tiny, "cuda", "triton")
    cache = _captured(model)
    plans = mixed_plans()
    torch.cuda.synchronize()
    allocated = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        for plan in plans:
            model.step(plan, cache)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == allocated


def test_an_eager_step_does_not_wait_either(tiny: TinyTarget) -> None:
    model = _load(tiny, "cuda", "triton")
    cache = model.make_cache(NUM_PAGES, PAGE_SIZE)
    plans = mixed_plans()
    for plan in plans:  # compiles
        model.step(plan, cache)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for plan in plans:
            model.step(plan, cache)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _greedy(model: TargetModel, cache: TargetCache, num_tokens: int = 40) -> list[int]:
    table = PageTable(PageAllocator(NUM_PAGES, PAGE_SIZE))
    table.reserve(len(PROMPT) + num_tokens)
    builder = StepBuilder(PAGE_SIZE)
    builder.add_chunk(table, np.array(PROMPT, np.int32), 0, sample=True)
    tokens = [int(model.step(builder.build(), cache).logits.argmax())]
    while len(tokens) < num_tokens:
        builder = StepBuilder(PAGE_SIZE)
        builder.add_tree(table, DraftTree.single(tokens[-1]), len(PROMPT) + len(tokens) - 1)
        tokens.append(int(model.step(builder.build(), cache).logits.argmax()))
    return tokens


def _greedy_ahead(model: TargetModel, cache: TargetCache, num_tokens: int) -> list[int]:
    """Each step is launched before the result of the one before is asked for."""
    table = PageTable(PageAllocator(NUM_PAGES, PAGE_SIZE))
    table.reserve(len(PROMPT) + num_tokens)
    builder = StepBuilder(PAGE_SIZE)
    builder.add_chunk(table, np.array(PROMPT, np.int32), 0, sample=True)
    plan, drawn = builder.build(), None
    sampling = sampling_batch([SamplingParams()])
    walks: list[PendingWalk] = []
    tokens: list[int] = []
    for number in range(num_tokens):
        walks.append(model.ops.start_walk(model.step(plan, cache, drawn=drawn).logits, plan.trees, sampling))
        drawn = walks[-1].first_tokens()
        builder = StepBuilder(PAGE_SIZE)
        builder.add_trees(single_rows(table, -1, len(PROMPT) + number))
        plan = builder.build()
        if len(walks) == 2:
            tokens += walks.pop(0).result().verified_id.tolist()
    return tokens + walks[0].result().verified_id.tolist()
