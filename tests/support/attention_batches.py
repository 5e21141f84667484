"""Attention batches of all kinds with caches to fit, and what softmax in fp64 makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.ops import AttentionBatch, AttentionLimits
from paceline.tree import DraftTree

BRANCHY_TREE = DraftTree(np.arange(9), np.array([-1, 0, 0, 1, 1, 2, 3, 5, 6]))
LARGEST_TREE = DraftTree(np.arange(64), np.array([-1, *(node // 2 for node in range(63))]))


@dataclass(frozen=True, slots=True)
class Request:
    """One of a batch; without a tree it is causal. q_len: None = local_len."""

    prefix_len: int
    local_len: int
    tree: DraftTree | None = None
    q_len: int | None = None

    @property
    def num_rows(self) -> int:
        return self.local_len if self.q_len is None else self.q_len

    @property
    def kv_len(self) -> int:
        return self.prefix_len + self.local_len


@dataclass(frozen=True, slots=True)
class Heads:
    num_heads: int
    num_kv_heads: int
    head_dim: int


RAGGED = [
    Request(0, 45),
    Request(13, 7),
    Request(3, 8, q_len=2),
    Request(37, 1, DraftTree.single(3)),
    Request(6, 9, BRANCHY_TREE),
    Request(70, 64, LARGEST_TREE, q_len=5),
    Request(5, 0),
    Request(90, 1),
]


def make_batch(requests: Sequence[Request], page_size: int, *, batch_invariant: bool = False) -> AttentionBatch:
    """Pages are dealt out of order."""
    num_pages = [-(-request.kv_len // page_size) for request in requests]
    page_ids = np.random.default_rng(1).permutation(sum(num_pages) + 3)[: sum(num_pages)]
    ancestors = [
        np.zeros(r.num_rows, np.uint64) if r.tree is None else r.tree.ancestors()[-r.num_rows :] for r in requests
    ]
    return AttentionBatch(
        q_indptr=np.cumsum([0, *(r.num_rows for r in requests)]).astype(np.int32),
        prefix_len=np.array([r.prefix_len for r in requests], np.int32),
        local_len=np.array([r.local_len for r in requests], np.int32),
        page_indptr=np.cumsum([0, *num_pages]).astype(np.int32),
        page_ids=page_ids.astype(np.int32),
        is_causal=np.array([r.tree is None for r in requests], np.bool_),
        ancestors=np.concatenate([np.zeros(0, np.uint64), *ancestors]),
        page_size=page_size,
        batch_invariant=batch_invariant,
    )


def limits_of(batches: Sequence[AttentionBatch], heads: Heads) -> AttentionLimits:
    """The least that hold each of them."""
    return AttentionLimits(
        max_rows=max(int(batch.q_indptr[-1]) for batch in batches),
        max_requests=max(len(batch.prefix_len) for batch in batches),
        max_pages=max(len(batch.page_ids) for batch in batches),
        page_size=batches[0].page_size,
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
    )


def make_caches(batch: AttentionBatch, heads: Heads, dtype: torch.dtype, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Slots past the requests' KV are NaN."""
    num_slots = (int(batch.page_ids.max(initial=0)) + 2) * batch.page_size
    shape = (2, num_slots, heads.num_kv_heads, heads.head_dim)
    caches = torch.full(shape, float("nan"), dtype=dtype, device=device)
    generator = torch.Generator(device).manual_seed(1)
    for request in range(len(batch.prefix_len)):
        slots = _slots(batch, request).to(device)
        values = torch.randn(2, len(slots), *shape[2:], generator=generator, device=device)
        caches[:, slots] = values.to(dtype)
    return caches[0], caches[1]


def make_queries(num_rows: int, heads: Heads, dtype: torch.dtype, device: str = "cpu") -> Tensor:
    """As the engine passes them: the first heads of each row of a wider projection."""
    generator = torch.Generator(device).manual_seed(2)
    wide = torch.randn(num_rows, heads.num_heads + 2, heads.head_dim, generator=generator, device=device)
    return wide.to(dtype)[:, : heads.num_heads]


def attend_in_fp64(batch: AttentionBatch, q: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
    """[rows, heads, head_dim] fp64, rows past the batch's 0."""
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    folds = q.shape[1] // k_cache.shape[1]
    for request in range(len(batch.prefix_len)):
        rows = slice(int(batch.q_indptr[request]), int(batch.q_indptr[request + 1]))
        slots = _slots(batch, request).to(q.device)
        k, v = (cache[slots].double().repeat_interleave(folds, dim=1) for cache in (k_cache, v_cache))
        scores = torch.einsum("qhd,nhd->hqn", q[rows].double(), k) * q.shape[2] ** -0.5
        hidden = torch.from_numpy(~_sees(batch, request)).to(q.device)
        weights = torch.softmax(scores.masked_fill_(hidden, float("-inf")), dim=2)
        out[rows] = torch.einsum("hqn,nhd->qhd", weights, v)
    return out


def _slots(batch: AttentionBatch, request: int) -> Tensor:
    position = np.arange(batch.prefix_len[request] + batch.local_len[request])
    pages = batch.page_ids[batch.page_indptr[request] + position // batch.page_size].astype(np.int64)
    return torch.from_numpy(pages * batch.page_size + position % batch.page_size)


def _sees(batch: AttentionBatch, request: int) -> np.ndarray:
    """bool [q, kv]"""
    prefix, local = int(batch.prefix_len[request]), int(batch.local_len[request])
    rows = range(int(batch.q_indptr[request]), int(batch.q_indptr[request + 1]))
    sees = np.zeros((len(rows), prefix + local), np.bool_)
    sees[:, :prefix] = True
    for i, row in enumerate(rows):
        own = local - len(rows) + i
        mask = (1 << (own + 1)) - 1 if batch.is_causal[request] else int(batch.ancestors[row])
        sees[i, prefix:] = [bool(mask >> j & 1) for j in range(local)]
    return sees
