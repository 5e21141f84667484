"""Attention of one ragged step by scaled_dot_product_attention over gathered KV."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kernels.ops import AttentionBatch

_MAX_BATCHED_ROWS = 64  # a request with more rows is a prompt chunk and runs alone
_KV_SPREAD = 64  # KV positions of padding that a batch of requests always tolerates, besides a factor of 2


@dataclass(frozen=True, slots=True)
class _Group:
    """Requests that run as one padded batch of g requests, q rows and kv positions."""

    rows: Tensor  # [g * q] int64, padding repeats a row
    kept: Tensor | None  # int64 into the [g * q] results: those that are not padding; None = all
    slots: Tensor  # [g * kv] int64, padding repeats the last position
    allowed: Tensor  # [g, q, kv] bool
    num_requests: int


class ReferencePlan:
    """AttentionPlan: requests of like KV length batched together, prompt chunks one by one."""

    def __init__(self, batch: AttentionBatch, device: torch.device) -> None:
        self._groups = [_plan_group(batch, members, device) for members in _group_requests(batch)]
        self._masks: list[Tensor] = []

    def run(self, q: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        num_kv_heads = k_cache.shape[1]
        if not self._masks:
            self._masks = [_additive(g.allowed, q.dtype, q.shape[1] // num_kv_heads) for g in self._groups]
        if len(self._groups) == 1 and self._groups[0].kept is None and len(self._groups[0].rows) == len(q):
            return _attend(self._groups[0], self._masks[0], q, (k_cache, v_cache))
        out = torch.empty_like(q)
        for group, mask in zip(self._groups, self._masks, strict=True):
            part = _attend(group, mask, q.index_select(0, group.rows), (k_cache, v_cache))
            if group.kept is None:
                out.index_copy_(0, group.rows, part)
            else:
                out.index_copy_(0, group.rows[group.kept], part[group.kept])
        return out


def _attend(group: _Group, mask: Tensor, q: Tensor, caches: tuple[Tensor, Tensor]) -> Tensor:
    """q: [g * q, heads, d] -> the same shape. Query heads of one KV head become rows of it, so KV is not repeated."""
    num_requests, num_heads, head_dim = group.num_requests, q.shape[1], q.shape[2]
    k, v = (
        cache.index_select(0, group.slots).view(num_requests, -1, cache.shape[1], head_dim).transpose(1, 2)
        for cache in caches
    )
    num_kv_heads = k.shape[1]
    folds = num_heads // num_kv_heads
    q = q.view(num_requests, -1, num_kv_heads, folds, head_dim).permute(0, 2, 3, 1, 4)
    if mask.shape[2] == q.shape[3]:
        parts = [scaled_dot_product_attention(q[:, :, fold], k, v, attn_mask=mask) for fold in range(folds)]
        out = torch.stack(parts, dim=2)
    else:
        folded = q.reshape(num_requests, num_kv_heads, -1, head_dim)
        out = scaled_dot_product_attention(folded, k, v, attn_mask=mask).view(q.shape)
    return out.permute(0, 3, 1, 2, 4).reshape(-1, num_heads, head_dim)


def _additive(allowed: Tensor, dtype: torch.dtype, folds: int) -> Tensor:
    """[g, 1, folds * q, kv] of 0 and -inf; of one fold where q is a prompt chunk, whose mask is large."""
    mask = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, float("-inf"))
    if allowed.shape[1] > _MAX_BATCHED_ROWS:
        folds = 1
    return mask.repeat(1, folds, 1).unsqueeze(1)


def _group_requests(batch: AttentionBatch) -> list[np.ndarray]:
    """Request indices of each group; padding at most doubles a request's KV, past _KV_SPREAD positions."""
    q_len = np.diff(batch.q_indptr)
    kv_len = batch.prefix_len + batch.local_len
    groups: list[list[int]] = []
    limit = -1
    for request in np.argsort(kv_len, kind="stable"):
        if q_len[request] == 0:
            continue
        alone = batch.batch_invariant or q_len[request] > _MAX_BATCHED_ROWS
        if alone or kv_len[request] > limit:
            groups.append([])
            limit = -1 if alone else 2 * kv_len[request] + _KV_SPREAD
        groups[-1].append(int(request))
    return [np.array(sorted(group)) for group in groups]


def _plan_group(batch: AttentionBatch, members: np.ndarray, device: torch.device) -> _Group:
    q_len = np.diff(batch.q_indptr)[members]
    kv_len = (batch.prefix_len + batch.local_len)[members]
    row = np.arange(q_len.max())
    rows = batch.q_indptr[members][:, None] + np.minimum(row, q_len[:, None] - 1)
    is_row = row < q_len[:, None]

    position = np.minimum(np.arange(kv_len.max()), kv_len[:, None] - 1)
    page = batch.page_ids[batch.page_indptr[members][:, None] + position // batch.page_size].astype(np.int64)
    slots = page * batch.page_size + position % batch.page_size
    return _Group(
        rows=torch.from_numpy(rows.reshape(-1).astype(np.int64)).to(device),
        kept=None if is_row.all() else torch.from_numpy(np.flatnonzero(is_row)).to(device),
        slots=torch.from_numpy(slots.reshape(-1)).to(device),
        allowed=torch.from_numpy(_allowed(batch, members, rows)).to(device),
        num_requests=len(members),
    )


def _allowed(batch: AttentionBatch, members: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """bool [g, q, kv]: what each row sees; a causal request counts all before its first row as prefix."""
    q_len = np.diff(batch.q_indptr)[members]
    kv_len = (batch.prefix_len + batch.local_len)[members]
    is_causal = batch.is_causal[members]
    local_len = np.where(is_causal, q_len, batch.local_len[members])
    prefix_len = kv_len - local_len
    allowed = np.repeat((np.arange(kv_len.max()) < prefix_len[:, None])[:, None], rows.shape[1], axis=1)

    local = np.arange(local_len.max())
    own = rows - batch.q_indptr[members][:, None]
    causal = local <= own[:, :, None]
    bit = np.minimum(local, 63).astype(np.uint64)
    in_tree = (batch.ancestors[rows][:, :, None] >> bit & np.uint64(1)).astype(np.bool_)
    seen = np.where(is_causal[:, None, None], causal, in_tree)
    request, column = np.nonzero(local < local_len[:, None])
    allowed[request, :, prefix_len[request] + column] = seen[request, :, column]
    return allowed
