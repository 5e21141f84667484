"""A draft head in C gives the bits of the ops that it joins, and its rounded weights stay near the whole ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from kernels.cpu_ops.native import NativeKernels
from kernels.cpu_ops.ops import CpuOps
from kernels.head import GreedyTrees, HeadRows, HeadWeights
from kernels.ops import AttentionBatch, AttentionWeights, HeadNorms
from kernels.reference.head import ReferenceHead

_native = pytest.importorskip("kernels.cpu_ops._native", reason="the C extension is not built here")

DTYPES = [torch.bfloat16, torch.float32]
HIDDEN, HEADS, KV_HEADS, DIM, INNER, VOCAB, DRAFT_VOCAB, POSITIONS, SLOTS = 64, 4, 2, 32, 96, 50, 101, 40, 24
ROWS = 5


@pytest.fixture(params=_native.isas())
def ops(request: pytest.FixtureRequest) -> CpuOps:
    return CpuOps(NativeKernels(_native, isa=request.param, num_threads=2))


def _weights(ops: CpuOps, dtype: torch.dtype) -> HeadWeights:
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * 0.3).to(dtype)

    def matrix(*shape: int) -> torch.Tensor:
        return ops.prepare_draft_weight(random(*shape))

    qkv_width = (HEADS + 2 * KV_HEADS) * DIM
    return HeadWeights(
        embedding=random(VOCAB, HIDDEN),
        cos_sin=torch.randn(POSITIONS, DIM, generator=generator),
        token_norm=random(HIDDEN),
        feature_norm=random(HIDDEN),
        attention=AttentionWeights(
            qkv=matrix(qkv_width, 2 * HIDDEN),
            output=matrix(HIDDEN, HEADS * DIM),
            num_heads=HEADS,
            num_kv_heads=KV_HEADS,
            head_dim=DIM,
            qkv_bias=random(qkv_width),
            norms=HeadNorms(random(DIM), random(DIM), 1e-5),
        ),
        post_norm=random(HIDDEN),
        gate_up=matrix(2 * INNER, HIDDEN),
        down=matrix(HIDDEN, INNER),
        norm=random(HIDDEN),
        lm_head=matrix(DRAFT_VOCAB, HIDDEN),
        target_ids=torch.arange(DRAFT_VOCAB) * 3,
        eps=1e-5,
        norm_before_residual=False,
        norm_output=False,
    )


class _Forward:
    """Two rows that extend a session and three of a tree of another."""

    def __init__(self, ops: CpuOps, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(2)
        batch = AttentionBatch(
            q_indptr=np.array([0, 2, 5], np.int32),
            prefix_len=np.array([6, 3], np.int32),
            local_len=np.array([2, 3], np.int32),
            page_indptr=np.array([0, 2, 4], np.int32),
            page_ids=np.array([5, 0, 3, 1], np.int32),
            is_causal=np.array([True, False]),
            ancestors=np.array([0, 0, 1, 2, 5], np.uint64),
            page_size=4,
        )
        self.rows = HeadRows(
            tokens=torch.tensor([3, 49, 0, 7, 7]),
            hidden=torch.randn(ROWS, HIDDEN, generator=generator).to(dtype),
            positions=torch.tensor([6, 7, 3, 3, 4]),
            slots=torch.tensor([2, 3, 15, 4, 5]),
            attention=ops.plan_attention(batch),
        )
        self.caches = [torch.randn(SLOTS, KV_HEADS, DIM, generator=generator).to(dtype) for _ in range(2)]

    def run(self, head: ReferenceHead) -> list[torch.Tensor]:
        k_cache, v_cache = (cache.clone() for cache in self.caches)
        return [head.forward(self.rows, k_cache, v_cache), k_cache, v_cache]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm_before_residual", [False, True])
@pytest.mark.parametrize("norm_output", [False, True])
def test_a_forward_and_its_ranking_are_their_ops_in_turn(
    ops: CpuOps, dtype: torch.dtype, norm_before_residual: bool, norm_output: bool
) -> None:
    weights = replace(_weights(ops, dtype), norm_before_residual=norm_before_residual, norm_output=norm_output)
    forward = _Forward(ops, dtype)
    joined, apart = ops.prepare_head(weights), ReferenceHead(ops, weights)
    assert type(joined) is not ReferenceHead
    got, wanted = forward.run(joined), forward.run(apart)
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
    for a, b in zip(joined.best(got[0], 7), apart.best(wanted[0], 7), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("column", "value", "message"), [("tokens", VOCAB, "token 50 of row 1"), ("positions", -1, "position -1 of row 1")]
)
def test_an_index_outside_its_table_is_an_error_before_anything_is_written(
    ops: CpuOps, column: str, value: int, message: str
) -> None:
    forward = _Forward(ops, torch.float32)
    getattr(forward.rows, column)[1] = value
    before = [cache.clone() for cache in forward.caches]
    with pytest.raises(IndexError, match=message):
        ops.prepare_head(_weights(ops, torch.float32)).forward(forward.rows, *forward.caches)
    assert all(torch.equal(a, b) for a, b in zip(forward.caches, before, strict=True))


# Two new rows from position 6 on, and a tree of 3 levels with a beam of 2: 4 scratch positions, so 3 pages of 4.
@pytest.mark.parametrize(
    ("num_pages", "num_tokens", "message"), [(2, 2, "page ids 0 to 2; there are 2"), (3, 1, "2 rows .* 1 tokens")]
)
def test_trees_that_need_more_rows_or_pages_than_are_given_are_an_error_before_anything_is_written(
    ops: CpuOps, num_pages: int, num_tokens: int, message: str
) -> None:
    caches = _Forward(ops, torch.float32).caches
    trees = GreedyTrees(
        asks=np.array([[6, 2, 0, 3, 2, 6]]),
        least_scores=np.full(1, -np.inf, np.float32),
        tokens=np.zeros(num_tokens, np.int64),
        features=torch.zeros(num_tokens, HIDDEN),
        page_ids=np.arange(num_pages, dtype=np.int32),
        page_size=4,
    )
    before = [cache.clone() for cache in caches]
    with pytest.raises(ValueError, match=message):
        ops.prepare_head(_weights(ops, torch.float32)).grow(trees, *caches)
    assert all(torch.equal(a, b) for a, b in zip(caches, before, strict=True))


@pytest.mark.parametrize("rows", [1, 2, 5, 6, 13])
@pytest.mark.parametrize(("num_out", "width"), [(1, 32), (7, 96), (205, 576)])
def test_a_rounded_weight_gives_the_product_with_its_rounded_values(
    ops: CpuOps, rows: int, num_out: int, width: int
) -> None:
    generator = torch.Generator().manual_seed(width)
    x = torch.randn(rows, width, generator=generator).bfloat16()
    weight, bias = (torch.randn(*shape, generator=generator).bfloat16() for shape in ((num_out, width), (num_out,)))
    scale = weight.float().abs().amax(1, keepdim=True) / 127
    exact = x.double() @ ((weight.float() / scale).round() * scale).double().T
    rounded = ops.prepare_draft_weight(weight)
    torch.testing.assert_close(ops.logits(x, rounded).double(), exact, rtol=1e-3, atol=2e-3)
    assert torch.equal(ops.linear(x, rounded, bias), (ops.logits(x, rounded) + bias.float()).bfloat16())


def test_a_rounded_weights_result_is_the_same_bits_in_any_company(ops: CpuOps) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, 160, generator=generator).bfloat16() for n in (20, 53))
    rounded = ops.prepare_draft_weight(weight)
    whole = ops.logits(x, rounded)
    for rows in range(1, 20):
        assert torch.equal(ops.logits(x[:rows], rounded), whole[:rows]), rows
        assert torch.equal(ops.logits(x[20 - rows :], rounded), whole[20 - rows :]), rows


def test_rows_and_weights_of_zeros_give_zeros_and_what_is_no_number_gives_none(ops: CpuOps) -> None:
    weight = torch.ones(3, 32).bfloat16()
    weight[1] = 0
    x = torch.ones(3, 32).bfloat16()
    x[1], x[2, 5] = 0, torch.nan
    got = ops.logits(x, ops.prepare_draft_weight(weight))
    assert got[:2].tolist() == [[32, 0, 32], [0, 0, 0]] and got[2].isnan().all()


def test_only_bf16_of_whole_steps_is_rounded(ops: CpuOps) -> None:
    for weight in (torch.ones(4, 64), torch.ones(4, 40).bfloat16()):
        assert torch.equal(ops.prepare_draft_weight(weight), ops.prepare_weight(weight))
    assert ops.prepare_draft_weight(torch.ones(4, 64).bfloat16()).dtype == torch.int8
