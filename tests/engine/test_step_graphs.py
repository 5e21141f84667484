"""Captured steps: sizes, padding and static inputs on the CPU, where a replay launches everything again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from engine.pages import PageAllocator, PageTable
from engine.plan import StepBuilder, StepPlan
from engine.step_graphs import StepGraphs, graph_sizes
from engine.step_inputs import StepInputs, StepSize
from engine.target_model import TargetModel
from engine.tp import TpGroup
from paceline.tree import DraftTree
from tests.support.eager_buffers import BufferedOps, replay_by_calling
from tests.support.step_plans import NUM_PAGES, PAGE_SIZE, assert_near, mixed_plans
from tests.support.tiny_target import save_tiny_target

CPU = torch.device("cpu")
MAX_ROWS = 40


@pytest.fixture
def model(tmp_path: Path) -> TargetModel:
    tiny = save_tiny_target(tmp_path)
    return TargetModel.load(
        tiny.model_path, head_path=tiny.head_path, dtype=torch.float32, ops=BufferedOps(), device=CPU, tp=TpGroup()
    )


@pytest.fixture
def plans() -> list[StepPlan]:
    return mixed_plans()


def test_the_sizes_are_all_nodes_of_a_bucket_and_few_nodes_of_many_rows() -> None:
    sizes = graph_sizes(200)
    assert sizes[0] == StepSize(200, 200, 200)
    assert [s.num_nodes for s in sizes if s.num_rows == 96] == [96, 64]
    assert [s.num_nodes for s in sizes if s.num_rows == 48] == [48]
    assert sorted({s.num_rows for s in sizes}) == [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 200]
    assert [s.num_nodes for s in graph_sizes(1024) if s.num_rows == 512] == [512, 256, 64]


def test_captured_steps_give_what_eager_ones_give(model: TargetModel, plans: list[StepPlan]) -> None:
    eager, captured = (model.make_cache(NUM_PAGES, PAGE_SIZE) for _ in range(2))
    model.capture(captured, MAX_ROWS, capture=replay_by_calling)
    model.ops.buffers.ran.clear()
    for plan in plans:
        wanted, found = model.step(plan, eager), model.step(plan, captured)
        assert_near(found.logits, wanted.logits, 1e-5)
        assert_near(found.features, wanted.features, 1e-5)
        for ours, theirs in zip(captured.pools, eager.pools, strict=True):
            assert_near(ours[: captured.spare_slot], theirs[: eager.spare_slot], 1e-5)
    layers = model.config.num_layers
    assert model.ops.buffers.ran[::layers] == [(12, 16), (16, 16), (8, 16), (12, 2), (4, 2), (40, 16)]


def test_what_a_step_before_left_in_the_static_inputs_changes_nothing(
    model: TargetModel, plans: list[StepPlan]
) -> None:
    cache = model.make_cache(NUM_PAGES, PAGE_SIZE)
    model.capture(cache, MAX_ROWS, capture=replay_by_calling)
    first = [model.step(plan, cache).logits.clone() for plan in plans]
    again = [model.step(plan, cache).logits.clone() for plan in plans]
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one, other)


def test_a_step_past_the_largest_bucket_runs_eagerly(model: TargetModel, plans: list[StepPlan]) -> None:
    cache = model.make_cache(NUM_PAGES, PAGE_SIZE)
    model.capture(cache, 4, capture=replay_by_calling)
    model.ops.buffers.ran.clear()
    output = model.step(plans[0], cache)
    assert output.features.shape[0] == plans[0].num_rows
    assert not model.ops.buffers.ran


def test_a_step_on_another_cache_runs_eagerly(model: TargetModel, plans: list[StepPlan]) -> None:
    captured, other = (model.make_cache(NUM_PAGES, PAGE_SIZE) for _ in range(2))
    model.capture(captured, MAX_ROWS, capture=replay_by_calling)
    model.step(plans[0], other)
    assert not captured.k[0][: captured.spare_slot].any()
    assert other.k[0][: other.spare_slot].any()


def test_the_largest_graph_is_captured_first_and_no_wide_tiles_for_few_rows(model: TargetModel) -> None:
    cache = model.make_cache(NUM_PAGES, PAGE_SIZE)
    model.capture(cache, 16, capture=replay_by_calling)
    layers = model.config.num_layers
    wide = [(rows, variant) for rows in (16, 12, 8, 4) for variant in (2, 16)]
    assert model.ops.buffers.ran[::layers] == [*wide, (2, 2), (1, 2)]


def test_padded_rows_and_moves_touch_the_spare_page_alone(plans: list[StepPlan]) -> None:
    spare, plan, size = NUM_PAGES * PAGE_SIZE, plans[4], StepSize(24, 24, 8)
    inputs = StepInputs.alone(size.num_bytes, spare_slot=spare, device=CPU)
    inputs.load(plans[3], size)
    inputs.load(plan, size)
    found = inputs.tensors(size)
    assert found.slots.tolist() == plan.slots.tolist() + [spare] * 22
    assert found.tokens.tolist() == plan.tokens.tolist() + [0] * 22
    assert found.positions.tolist() == plan.positions.tolist() + [0] * 22
    assert found.logit_rows.tolist() == plan.logit_rows.tolist() + [0] * 22
    assert found.move_src.tolist() == plan.move_src.tolist() + [spare] * 5
    assert found.move_dst.tolist() == plan.move_dst.tolist() + [spare] * 5


def test_the_inputs_of_a_size_lie_at_the_same_addresses_whatever_was_loaded(plans: list[StepPlan]) -> None:
    size = StepSize(MAX_ROWS, MAX_ROWS, MAX_ROWS)
    inputs = StepInputs.alone(size.num_bytes, spare_slot=0, device=CPU)
    static = inputs.tensors(size)
    for plan in plans:
        inputs.load(plan, size)
        assert static.tokens[: plan.num_rows].tolist() == plan.tokens.tolist()
        assert static.logit_rows[: len(plan.logit_rows)].tolist() == plan.logit_rows.tolist()
        assert static.move_dst[: len(plan.move_dst)].tolist() == plan.move_dst.tolist()


def test_a_plan_goes_to_the_smallest_graph_that_holds_its_rows_moves_and_pages(model: TargetModel) -> None:
    cache = model.make_cache(3, PAGE_SIZE)
    model.capture(cache, 2, capture=replay_by_calling)
    graphs: StepGraphs = model._graphs
    table = PageTable(PageAllocator(NUM_PAGES, PAGE_SIZE))
    table.reserve(16)
    assert graphs.size_for(_decode(table, 11)) == StepSize(1, 1, 1)
    assert graphs.size_for(_decode(table, 12)) is None
    assert graphs.size_for(_decode(table, 1, num_moves=2)) == StepSize(2, 2, 2)
    assert graphs.size_for(_decode(table, 1, num_moves=3)) is None


def _decode(table: PageTable, committed_len: int, num_moves: int = 0) -> StepPlan:
    builder = StepBuilder(PAGE_SIZE)
    builder.move(np.arange(num_moves) + 5, np.arange(num_moves))
    builder.add_tree(table, DraftTree.single(1), committed_len)
    return builder.build()
