"""The C attention against softmax in fp64, and its promise that a row's bits depend on what it sees alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.cpu_ops.native import NativeKernels
from kernels.cpu_ops.ops import CpuOps
from kernels.ops import AttentionBatch
from paceline.tree import DraftTree

_native = pytest.importorskip("kernels.cpu_ops._native", reason="the C extension is not built here")

Request = tuple[int, int, int, DraftTree | None]  # prefix_len, local_len, q_len, tree

TREE = DraftTree(np.arange(9), np.array([-1, 0, 0, 1, 1, 2, 3, 5, 6]))
LARGE_TREE = DraftTree(np.arange(64), np.array([-1, *(node // 2 for node in range(63))]))
RAGGED: list[Request] = [
    (0, 70, 70, None),
    (13, 21, 21, None),
    (3, 8, 2, None),
    (37, 1, 1, DraftTree.single(3)),
    (6, 9, 9, TREE),
    (0, 64, 64, LARGE_TREE),
    (90, 9, 4, TREE),
    (5, 0, 0, None),
    (129, 1, 1, None),
]


@pytest.fixture(params=_native.isas())
def ops(request: pytest.FixtureRequest) -> CpuOps:
    return CpuOps(NativeKernels(_native, isa=request.param))


def _batch(requests: list[Request], page_size: int) -> AttentionBatch:
    """Pages are dealt out of order."""
    pages_of = [-(-(prefix + local) // page_size) for prefix, local, _, _ in requests]
    page_ids = np.random.default_rng(1).permutation(sum(pages_of) + 3)[: sum(pages_of)]
    ancestors = [
        np.zeros(q_len, np.uint64) if tree is None else tree.ancestors()[-q_len:] for _, _, q_len, tree in requests
    ]
    return AttentionBatch(
        q_indptr=np.cumsum([0, *(r[2] for r in requests)]).astype(np.int32),
        prefix_len=np.array([r[0] for r in requests], np.int32),
        local_len=np.array([r[1] for r in requests], np.int32),
        page_indptr=np.cumsum([0, *pages_of]).astype(np.int32),
        page_ids=page_ids.astype(np.int32),
        is_causal=np.array([r[3] is None for r in requests]),
        ancestors=np.concatenate(ancestors),
        page_size=page_size,
    )


def _slots(batch: AttentionBatch, request: int) -> Tensor:
    position = np.arange(batch.prefix_len[request] + batch.local_len[request])
    pages = batch.page_ids[batch.page_indptr[request] + position // batch.page_size].astype(np.int64)
    return torch.from_numpy(pages * batch.page_size + position % batch.page_size)


def _caches(batch: AttentionBatch, kv_heads: int, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Slots that no request holds are NaN."""
    caches = torch.full((2, (int(batch.page_ids.max()) + 2) * batch.page_size, kv_heads, head_dim), float("nan"))
    generator = torch.Generator().manual_seed(1)
    for request in range(len(batch.prefix_len)):
        slots = _slots(batch, request)
        caches[:, slots] = torch.randn(2, len(slots), kv_heads, head_dim, generator=generator)
    k_cache, v_cache = caches.to(dtype)
    return k_cache, v_cache


def _expected(batch: AttentionBatch, q: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
    out = torch.empty(q.shape, dtype=torch.float64)
    folds = q.shape[1] // k_cache.shape[1]
    for request in range(len(batch.prefix_len)):
        prefix, local = int(batch.prefix_len[request]), int(batch.local_len[request])
        slots = _slots(batch, request)
        start, stop = int(batch.q_indptr[request]), int(batch.q_indptr[request + 1])
        for row in range(start, stop):
            own = local - (stop - start) + (row - start)
            mask = (1 << (own + 1)) - 1 if batch.is_causal[request] else int(batch.ancestors[row])
            seen = slots[[*range(prefix), *(prefix + j for j in range(local) if mask >> j & 1)]]
            k, v = (cache[seen].double().repeat_interleave(folds, dim=1) for cache in (k_cache, v_cache))
            weights = torch.softmax(torch.einsum("hd,nhd->hn", q[row].double(), k) * q.shape[2] ** -0.5, dim=1)
            out[row] = torch.einsum("hn,nhd->hd", weights, v)
    return out


def _queries(rows: int, heads: int, head_dim: int, dtype: torch.dtype) -> Tensor:
    """As the engine passes them: the head of each row of a wider projection."""
    return torch.randn(rows, heads + 2, head_dim, generator=torch.Generator().manual_seed(2)).to(dtype)[:, :heads]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "page_size"), [(9, 3, 64, 16), (4, 1, 32, 5), (2, 2, 96, 1), (7, 1, 128, 64)]
)
def test_a_ragged_step_attends_as_each_row_alone_would(
    ops: CpuOps, heads: int, kv_heads: int, head_dim: int, page_size: int, dtype: torch.dtype
) -> None:
    batch = _batch(RAGGED, page_size)
    k_cache, v_cache = _caches(batch, kv_heads, head_dim, dtype)
    q = _queries(int(batch.q_indptr[-1]), heads, head_dim, dtype)
    out = ops.plan_attention(batch).run(q, k_cache, v_cache)
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(out.double(), _expected(batch, q, k_cache, v_cache), rtol=tolerance, atol=tolerance / 4)


def test_heads_that_the_kernel_does_not_know_take_the_reference(ops: CpuOps) -> None:
    batch = _batch(RAGGED, 4)
    k_cache, v_cache = torch.nan_to_num(torch.stack(_caches(batch, 1, 24, torch.float32)))
    q = _queries(int(batch.q_indptr[-1]), 2, 24, torch.float32)
    plan = ops.plan_attention(batch)
    for _ in range(2):
        torch.testing.assert_close(
            plan.run(q, k_cache, v_cache).double(), _expected(batch, q, k_cache, v_cache), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_node_gets_the_bits_of_a_plain_step_that_committed_its_path(ops: CpuOps, dtype: torch.dtype) -> None:
    prefix = 77
    batch = _batch([(prefix, 9, 9, TREE)], 16)
    k_cache, v_cache = _caches(batch, 3, 64, dtype)
    q = _queries(9, 9, 64, dtype)
    in_tree = ops.plan_attention(batch).run(q, k_cache, v_cache)
    slots = _slots(batch, 0)
    for node in range(9):
        path = [j for j in range(9) if int(batch.ancestors[node]) >> j & 1]
        plain = _batch([(prefix + len(path) - 1, 1, 1, None)], 16)
        caches = torch.zeros(2, *k_cache.shape, dtype=dtype)
        caches[:, _slots(plain, 0)] = torch.stack((k_cache, v_cache))[
            :, slots[[*range(prefix), *(prefix + j for j in path)]]
        ]
        alone = ops.plan_attention(plain).run(q[node : node + 1], caches[0], caches[1])
        assert torch.equal(alone[0], in_tree[node]), node


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_prompt_gets_the_same_bits_in_chunks_of_any_size(ops: CpuOps, dtype: torch.dtype) -> None:
    batch = _batch([(0, 45, 45, None)], 8)
    k_cache, v_cache = _caches(batch, 3, 64, dtype)
    q = _queries(45, 9, 64, dtype)
    whole = ops.plan_attention(batch).run(q, k_cache, v_cache)
    for size in (1, 7, 32):
        for start in range(0, 45, size):
            stop = min(start + size, 45)
            chunk = AttentionBatch(
                q_indptr=np.array([0, stop - start], np.int32),
                prefix_len=np.array([start], np.int32),
                local_len=np.array([stop - start], np.int32),
                page_indptr=batch.page_indptr,
                page_ids=batch.page_ids,
                is_causal=np.array([True]),
                ancestors=np.zeros(stop - start, np.uint64),
                page_size=8,
            )
            out = ops.plan_attention(chunk).run(q[start:stop], k_cache, v_cache)
            assert torch.equal(out, whole[start:stop]), (size, start)


def test_a_request_gets_the_same_bits_in_any_batch(ops: CpuOps) -> None:
    batch = _batch(RAGGED, 16)
    k_cache, v_cache = _caches(batch, 3, 64, torch.bfloat16)
    q = _queries(int(batch.q_indptr[-1]), 9, 64, torch.bfloat16)
    together = ops.plan_attention(batch).run(q, k_cache, v_cache)
    for request in range(len(RAGGED)):
        rows = slice(int(batch.q_indptr[request]), int(batch.q_indptr[request + 1]))
        alone = AttentionBatch(
            q_indptr=np.array([0, rows.stop - rows.start], np.int32),
            prefix_len=batch.prefix_len[request : request + 1],
            local_len=batch.local_len[request : request + 1],
            page_indptr=batch.page_indptr[request : request + 2] - batch.page_indptr[request],
            page_ids=batch.page_ids[batch.page_indptr[request] : batch.page_indptr[request + 1]],
            is_causal=batch.is_causal[request : request + 1],
            ancestors=batch.ancestors[rows],
            page_size=16,
        )
        assert torch.equal(ops.plan_attention(alone).run(q[rows], k_cache, v_cache), together[rows]), request
