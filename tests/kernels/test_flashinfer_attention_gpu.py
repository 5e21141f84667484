"""FlashInfer's attention against softmax in fp64, on a GPU with FlashInfer installed."""

from __future__ import annotations

import logging

import pytest
import torch

from paceline.tree import DraftTree
from tests.support.attention_batches import (
    BRANCHY_TREE,
    RAGGED,
    Heads,
    Request,
    attend_in_fp64,
    make_batch,
    make_caches,
    make_queries,
)

pytest.importorskip("flashinfer", reason="FlashInfer is not installed here")
from kernels.flashinfer_ops.ops import FlashInferOps

pytestmark = pytest.mark.gpu

LLAMA_8B = Heads(32, 8, 128)
TOLERANCE = {torch.bfloat16: 1e-2, torch.float32: 1e-5}


@pytest.fixture(scope="module")
def ops() -> FlashInferOps:
    return FlashInferOps("cuda")


@pytest.mark.parametrize(
    ("heads", "page_size", "dtype"),
    [
        (LLAMA_8B, 16, torch.bfloat16),
        (Heads(9, 3, 64), 16, torch.bfloat16),
        (Heads(9, 3, 64), 1, torch.float32),
        (Heads(6, 2, 96), 64, torch.bfloat16),
    ],
)
@pytest.mark.parametrize(
    "requests",
    [
        [Request(17 * i % 900, 1) for i in range(100)],
        [Request(8100, 1)],
        [Request(40, 4, DraftTree.chain([0] * 4)), Request(700, 300), Request(0, 33), Request(90, 1)],
        [Request(400, 9, BRANCHY_TREE), Request(30, 1)],
        RAGGED,
    ],
    ids=["decode", "long", "chunks and chains", "trees", "all kinds"],
)
def test_a_step_attends_as_each_row_alone_would(
    ops: FlashInferOps, heads: Heads, page_size: int, dtype: torch.dtype, requests: list[Request]
) -> None:
    batch = make_batch(requests, page_size)
    caches = make_caches(batch, heads, dtype, "cuda")
    q = make_queries(int(batch.q_indptr[-1]), heads, dtype, "cuda")
    plan = ops.plan_attention(batch)
    expected = attend_in_fp64(batch, q, *caches)
    for _ in range(2):
        out = plan.run(q, *caches)
        torch.testing.assert_close(out.double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_the_kernel_is_built_with_the_buffers_and_said_so(ops: FlashInferOps, caplog: pytest.LogCaptureFixture) -> None:
    from kernels.ops import AttentionLimits

    with caplog.at_level(logging.INFO):
        ops = FlashInferOps("cuda")
        ops.attention_buffers(AttentionLimits(8, 8, 64, 16, 32, 8, 128))
        assert "ready" in caplog.text
        caplog.clear()
        batch = make_batch([Request(100, 1)], 16)
        caches = make_caches(batch, LLAMA_8B, torch.bfloat16, "cuda")
        ops.plan_attention(batch).run(make_queries(1, LLAMA_8B, torch.bfloat16, "cuda"), *caches)
        assert not caplog.text
