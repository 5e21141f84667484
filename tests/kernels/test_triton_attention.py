"""The Triton attention against softmax in fp64: ragged steps, splits, and buffers that are loaded again and again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from kernels.ops import AttentionBatch
from kernels.reference.attention_buffers import ReferenceAttentionBuffers
from tests.support.attention_batches import (
    BRANCHY_TREE,
    LARGEST_TREE,
    RAGGED,
    Heads,
    Request,
    attend_in_fp64,
    limits_of,
    make_batch,
    make_caches,
    make_queries,
)

pytest.importorskip("triton", reason="triton is not installed here")
from kernels.triton_ops.attention_buffers import TritonAttentionBuffers
from kernels.triton_ops.attention_tuning import AttentionTuning
from kernels.triton_ops.attention_units import units_of
from kernels.triton_ops.ops import TritonOps
from tests.support.extension import needs_extension

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="triton compiles for the GPU here"),
    needs_extension,
]

CPU = torch.device("cpu")
HEADS = Heads(num_heads=4, num_kv_heads=2, head_dim=16)
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3}  # interpreted, dot products know no bf16
EAGER_SPLITS = replace(AttentionTuning(), min_split_len=16, split_ctas_per_sm=4)


def _assert_attends(
    out: torch.Tensor, batch: AttentionBatch, q: torch.Tensor, caches: tuple[torch.Tensor, ...]
) -> None:
    expected = attend_in_fp64(batch, q, *caches)
    tolerance = TOLERANCE[q.dtype]
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("heads", "page_size", "dtype"),
    [
        (Heads(6, 2, 64), 16, torch.float32),
        (Heads(4, 1, 32), 5, torch.float16),
        (Heads(2, 2, 96), 1, torch.float16),
        (Heads(7, 1, 128), 64, torch.float32),
    ],
)
def test_a_ragged_step_attends_as_each_row_alone_would(heads: Heads, page_size: int, dtype: torch.dtype) -> None:
    batch = make_batch(RAGGED, page_size)
    caches = make_caches(batch, heads, dtype)
    q = make_queries(int(batch.q_indptr[-1]), heads, dtype)
    plan = TritonOps("cpu").plan_attention(batch)
    _assert_attends(plan.run(q, *caches), batch, q, caches)


@pytest.mark.parametrize("variant", [0, 1])
@pytest.mark.parametrize(
    "requests",
    [
        [Request(150, 1)],
        [Request(201, 9, BRANCHY_TREE)],
        [Request(170, 64, LARGEST_TREE, q_len=5)],
        [Request(40, 3), Request(110, 1), Request(0, 40), Request(60, 9, BRANCHY_TREE)],
    ],
    ids=["decode", "tree", "beam", "mixed"],
)
def test_a_split_prefix_adds_up(requests: list[Request], variant: int) -> None:
    batch = make_batch(requests, 16)
    caches = make_caches(batch, HEADS, torch.float32)
    num_rows = int(batch.q_indptr[-1])
    q = make_queries(num_rows, HEADS, torch.float32)
    buffers = TritonAttentionBuffers(limits_of([batch], HEADS), CPU, tuning=EAGER_SPLITS)
    plan = buffers.plan(num_rows, buffers.load(batch, buffers.variants[variant]))
    assert units_of(buffers.rule, batch, buffers.variants[variant]).num_partials > 1
    for _ in range(2):
        _assert_attends(plan.run(q, *caches), batch, q, caches)
        assert not buffers.arrivals.any()


@pytest.mark.parametrize("backend", [TritonAttentionBuffers, ReferenceAttentionBuffers])
def test_one_plan_runs_whatever_is_loaded_and_zeroes_the_other_rows(
    backend: type[TritonAttentionBuffers] | type[ReferenceAttentionBuffers],
) -> None:
    batches = [
        make_batch([Request(20, 1), Request(3, 9, BRANCHY_TREE)], 4),
        make_batch([], 4),
        make_batch([Request(0, 12)], 4),
        make_batch([Request(70, 1), Request(2, 1), Request(9, 1)], 4),
    ]
    caches = make_caches(max(batches, key=lambda batch: len(batch.page_ids)), HEADS, torch.float32)
    caches = tuple(torch.nan_to_num(cache) for cache in caches)
    q = make_queries(16, HEADS, torch.float32)
    buffers = backend(replace(limits_of(batches, HEADS), max_rows=16), CPU)
    for variant in buffers.variants:
        plan = buffers.plan(16, variant)
        for batch in batches:
            assert buffers.load(batch, variant) == variant
            _assert_attends(plan.run(q, *caches), batch, q, caches)


@pytest.mark.parametrize("backend", [TritonAttentionBuffers, ReferenceAttentionBuffers])
def test_lengths_and_ancestors_may_be_written_on_the_device(
    backend: type[TritonAttentionBuffers] | type[ReferenceAttentionBuffers],
) -> None:
    """A beam of two grows by a level, as the drafter's does."""
    first = make_batch([Request(21, 4, BRANCHY_TREE, q_len=2), Request(9, 4, BRANCHY_TREE, q_len=2)], 16)
    second = replace(
        first,
        prefix_len=first.prefix_len - 1,
        local_len=first.local_len + 2,
        ancestors=np.array([0b010101, 0b100101, 0b011001, 0b101010], np.uint64),
    )
    caches = tuple(torch.nan_to_num(cache) for cache in make_caches(first, HEADS, torch.float32))
    q = make_queries(4, HEADS, torch.float32)
    buffers = backend(limits_of([first], HEADS), CPU)
    plan = buffers.plan(4, buffers.load(first))
    _assert_attends(plan.run(q, *caches), first, q, caches)
    buffers.prefix_len[:2] -= 1
    buffers.local_len[:2] += 2
    buffers.ancestors[:4] = torch.from_numpy(second.ancestors.view(np.int64))
    _assert_attends(plan.run(q, *caches), second, q, caches)


def test_an_invariant_batch_gives_a_request_the_bits_it_gets_alone() -> None:
    requests = [Request(1100, 1), Request(30, 9, BRANCHY_TREE), Request(5, 20), Request(60, 1)]
    batch = make_batch(requests, 16, batch_invariant=True)
    caches = make_caches(batch, HEADS, torch.float32)
    q = make_queries(int(batch.q_indptr[-1]), HEADS, torch.float32)
    ops = TritonOps("cpu")
    together = ops.plan_attention(batch).run(q, *caches)
    _assert_attends(together, batch, q, caches)
    for i in range(len(requests)):
        rows = slice(int(batch.q_indptr[i]), int(batch.q_indptr[i + 1]))
        alone = replace(
            batch,
            q_indptr=batch.q_indptr[i : i + 2] - batch.q_indptr[i],
            prefix_len=batch.prefix_len[i : i + 1],
            local_len=batch.local_len[i : i + 1],
            page_indptr=batch.page_indptr[i : i + 2] - batch.page_indptr[i],
            page_ids=batch.page_ids[batch.page_indptr[i] : batch.page_indptr[i + 1]],
            is_causal=batch.is_causal[i : i + 1],
            ancestors=batch.ancestors[rows],
        )
        assert torch.equal(ops.plan_attention(alone).run(q[rows], *caches), together[rows]), requests[i]


def test_what_does_not_fit_the_buffers_is_refused_by_name() -> None:
    batch = make_batch([Request(20, 1), Request(3, 9, BRANCHY_TREE)], 4)
    limits = limits_of([batch], HEADS)
    for small, match in [
        (replace(limits, max_rows=9), "10 rows, 2 requests and 9 pages"),
        (replace(limits, max_requests=1), "2 requests"),
        (replace(limits, max_pages=8), "9 pages"),
        (replace(limits, page_size=8), "page size is 4"),
    ]:
        for buffers in (TritonAttentionBuffers(small, CPU), ReferenceAttentionBuffers(small, CPU)):
            with pytest.raises(ValueError, match=match):
                buffers.load(batch)
    buffers = TritonAttentionBuffers(limits, CPU)
    with pytest.raises(ValueError, match="variant is 3"):
        buffers.load(batch, 3)
    with pytest.raises(ValueError, match="plan_attention"):
        buffers.load(replace(batch, batch_invariant=True))
