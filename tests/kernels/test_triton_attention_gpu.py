"""The Triton attention on a GPU: real heads, long prefixes, and captured graphs that are replayed with other loads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.ops import AttentionBatch
from paceline.tree import DraftTree
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
from kernels.triton_ops.ops import TritonOps

pytestmark = pytest.mark.gpu

LLAMA_8B = Heads(32, 8, 128)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
TREE_16 = DraftTree(np.arange(16), np.array([-1, 0, 0, 0, 0, 1, 1, 2, 2, 5, 5, 6, 7, 9, 9, 13]))
STEPS = {
    "one decode row": [Request(200, 1)],
    "one long decode row": [Request(8190, 1)],
    "one long tree": [Request(8001, 16, TREE_16)],
    "decode rows": [Request(17 * i % 400, 1) for i in range(256)],
    "decode rows of one long and many short": [Request(9000, 1), *(Request(3 * i, 1) for i in range(63))],
    "trees": [Request(150 + 7 * i, 16, TREE_16) for i in range(32)],
    "large trees": [Request(150 + 100 * i, 64, LARGEST_TREE) for i in range(5)],
    "a beam": [Request(300 + i, 9, BRANCHY_TREE, q_len=4) for i in range(40)],
    "a chunk": [Request(1027, 512)],
    "all kinds": [*RAGGED, Request(2000, 16, TREE_16), Request(700, 300), *(Request(50 * i, 1) for i in range(40))],
}


def _assert_attends(out: Tensor, batch: AttentionBatch, q: Tensor, caches: tuple[Tensor, ...]) -> None:
    tolerance = TOLERANCE[q.dtype]
    torch.testing.assert_close(out.double(), attend_in_fp64(batch, q, *caches), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("requests", STEPS.values(), ids=STEPS)
def test_steps_of_an_8b_model_in_every_variant(requests: list[Request], dtype: torch.dtype) -> None:
    batch = make_batch(requests, 16)
    caches = make_caches(batch, LLAMA_8B, dtype, "cuda")
    num_rows = int(batch.q_indptr[-1])
    q = make_queries(num_rows, LLAMA_8B, dtype, "cuda")
    buffers = TritonAttentionBuffers(limits_of([batch], LLAMA_8B), q.device)
    for variant in buffers.variants:
        plan = buffers.plan(num_rows, buffers.load(batch, variant))
        _assert_attends(plan.run(q, *caches), batch, q, caches)
        assert not buffers.arrivals.any()


@pytest.mark.parametrize(
    ("heads", "page_size", "dtype"),
    [
        (Heads(9, 3, 64), 16, torch.bfloat16),
        (Heads(9, 3, 64), 16, torch.float32),
        (Heads(4, 1, 32), 5, torch.float16),
        (Heads(2, 2, 96), 1, torch.bfloat16),
        (Heads(7, 1, 128), 64, torch.float16),
        (Heads(40, 1, 80), 32, torch.bfloat16),
        (Heads(2, 1, 8), 2, torch.float32),
        (Heads(8, 2, 256), 16, torch.bfloat16),
        (Heads(8, 2, 256), 16, torch.float32),
    ],
)
def test_odd_heads_and_pages(heads: Heads, page_size: int, dtype: torch.dtype) -> None:
    batch = make_batch([*RAGGED, Request(3000, 1), Request(1500, 9, BRANCHY_TREE)], page_size)
    caches = make_caches(batch, heads, dtype, "cuda")
    num_rows = int(batch.q_indptr[-1])
    q = make_queries(num_rows, heads, dtype, "cuda")
    buffers = TritonAttentionBuffers(limits_of([batch], heads), q.device)
    for variant in buffers.variants:
        plan = buffers.plan(num_rows, buffers.load(batch, variant))
        _assert_attends(plan.run(q, *caches), batch, q, caches)
    _assert_attends(TritonOps("cuda").plan_attention(batch).run(q, *caches), batch, q, caches)


def test_a_graph_replays_what_was_loaded_last() -> None:
    """Loads follow each other without a wait, so that both halves of the staging are in flight."""
    steps = [
        [Request(300, 1), Request(20, 16, TREE_16), Request(4000, 1)],
        [Request(40 * i, 1) for i in range(64)],
        [],
        [Request(7000, 16, TREE_16)],
        [Request(0, 40)],
        [Request(100 * i, 16, TREE_16) for i in range(4)],
    ]
    batches = [make_batch(requests, 16) for requests in steps]
    caches = make_caches(max(batches, key=lambda b: len(b.page_ids)), LLAMA_8B, torch.bfloat16, "cuda")
    caches = tuple(torch.nan_to_num(cache) for cache in caches)
    q = make_queries(64, LLAMA_8B, torch.bfloat16, "cuda")
    buffers = TritonAttentionBuffers(replace(limits_of(batches, LLAMA_8B), max_rows=64), q.device)
    for variant in buffers.variants:
        replay, out = _capture(partial(buffers.plan(64, variant).run, q, *caches))
        got = []
        for batch in [*batches, *reversed(batches)]:
            buffers.load(batch, variant)
            replay()
            got.append(out.clone())
        for result, batch in zip(got, [*batches, *reversed(batches)], strict=True):
            _assert_attends(result, batch, q, caches)


def test_a_replay_gives_the_same_bits_again() -> None:
    """Which program of a split tile comes last is a matter of chance; the order of the sum is not."""
    batch = make_batch([Request(5000, 1), Request(2500, 16, TREE_16)], 16)
    caches = make_caches(batch, LLAMA_8B, torch.bfloat16, "cuda")
    q = make_queries(17, LLAMA_8B, torch.bfloat16, "cuda")
    buffers = TritonAttentionBuffers(limits_of([batch], LLAMA_8B), q.device)
    for variant in buffers.variants:
        buffers.load(batch, variant)
        replay, out = _capture(partial(buffers.plan(17, variant).run, q, *caches))
        replay()
        first = out.clone()
        for _ in range(200):
            replay()
            assert torch.equal(out, first)


def test_a_graph_reads_what_device_code_wrote_after_the_load() -> None:
    first = make_batch([Request(1000, 4, BRANCHY_TREE, q_len=2), Request(9, 4, BRANCHY_TREE, q_len=2)], 16)
    ancestors = np.array([0b010101, 0b100101, 0b011001, 0b101010], np.uint64)
    second = replace(first, local_len=first.local_len + 2, ancestors=ancestors)
    caches = tuple(torch.nan_to_num(cache) for cache in make_caches(first, LLAMA_8B, torch.bfloat16, "cuda"))
    q = make_queries(4, LLAMA_8B, torch.bfloat16, "cuda")
    buffers = TritonAttentionBuffers(limits_of([first], LLAMA_8B), q.device)
    plan = buffers.plan(4, buffers.load(first))
    replay, out = _capture(partial(plan.run, q, *caches))
    replay()
    _assert_attends(out, first, q, caches)
    buffers.local_len[:2] += 2
    buffers.ancestors[:4] = torch.from_numpy(ancestors.view(np.int64)).cuda()
    replay()
    _assert_attends(out, second, q, caches)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_an_invariant_batch_gives_a_request_the_bits_it_gets_alone(dtype: torch.dtype) -> None:
    ops = TritonOps("cuda")
    requests = [
        Request(5000, 1),
        Request(1200, 16, TREE_16),
        Request(800, 300),
        *(Request(9 * i, 1) for i in range(99)),
    ]
    batch = make_batch(requests, 16, batch_invariant=True)
    caches = make_caches(batch, LLAMA_8B, dtype, "cuda")
    q = make_queries(int(batch.q_indptr[-1]), LLAMA_8B, dtype, "cuda")
    together = ops.plan_attention(batch).run(q, *caches)
    _assert_attends(together, batch, q, caches)
    for i in (0, 1, 2, 50):
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


def _capture(run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """The replay of a graph of ``run``, after one pass that compiles, and what the graph writes."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    return graph.replay, out
