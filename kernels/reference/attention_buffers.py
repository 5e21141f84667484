"""Plans over tables on any device: what device code wrote is read back, and planned anew, in every run."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kernels.ops import AttentionBatch, AttentionLimits, AttentionTables
from kernels.reference.attention import ReferencePlan
from kernels.unit_rule import UnitRule
from kernels.upload import Upload

_RULE = UnitRule((1,), target_units=1, wide_gain=1.0, min_split_len=1 << 30, invariant_split_len=1 << 30)


class ReferenceAttentionPlanner:
    """AttentionPlanner, which reads no units. Its plans wait for the device, so no graph holds them."""

    def __init__(self, limits: AttentionLimits) -> None:
        self.limits = limits
        self.rule = _RULE

    def plan(self, tables: AttentionTables, num_rows: int, variant: int) -> _TablesPlan:
        _check_variant(variant, self.rule.rows)
        return _TablesPlan(tables, num_rows, self.limits.page_size)


class ReferenceAttentionBuffers:
    """AttentionBuffers on any device. Its plans wait for the device, so no graph holds them."""

    variants: tuple[int, ...] = _RULE.rows

    def __init__(self, limits: AttentionLimits, device: torch.device, *, num_ahead: int = 0) -> None:
        self.limits = limits
        self.ahead = Upload(num_ahead, torch.uint8, device)
        requests = limits.max_requests
        zeros = lambda size: torch.zeros(size, dtype=torch.int32, device=device)  # noqa: E731
        self._tables = AttentionTables(
            counts=zeros(3),
            units=zeros(0),
            q_indptr=zeros(requests + 1),
            prefix_len=zeros(requests),
            local_len=zeros(requests),
            is_causal=zeros(requests),
            ancestors=torch.zeros(limits.max_rows, dtype=torch.int64, device=device),
            page_indptr=zeros(requests + 1),
            page_ids=zeros(limits.max_pages),
        )
        self.q_indptr = self._tables.q_indptr
        self.prefix_len = self._tables.prefix_len
        self.local_len = self._tables.local_len
        self.ancestors = self._tables.ancestors
        self.page_indptr = self._tables.page_indptr
        self.page_ids = self._tables.page_ids

    def load(self, batch: AttentionBatch, variant: int | None = None, *, start: int | None = None) -> int:
        check_limits(batch, self.limits)
        if start is not None:
            self.ahead.send(len(self.ahead.tensor), start=start)
        if variant is not None:
            _check_variant(variant, self.variants)
        tables = self._tables
        for tensor, array in (
            (tables.counts, np.array([0, batch.q_indptr[-1], len(batch.prefix_len)])),
            (tables.q_indptr, batch.q_indptr),
            (tables.prefix_len, batch.prefix_len),
            (tables.local_len, batch.local_len),
            (tables.is_causal, batch.is_causal),
            (tables.ancestors, batch.ancestors.view(np.int64)),
            (tables.page_indptr, batch.page_indptr),
            (tables.page_ids, batch.page_ids),
        ):
            tensor[: len(array)] = torch.from_numpy(np.array(array))
        return self.variants[0]

    def plan(self, num_rows: int, variant: int) -> _TablesPlan:
        _check_variant(variant, self.variants)
        return _TablesPlan(self._tables, num_rows, self.limits.page_size)


class _TablesPlan:
    """AttentionPlan of whatever the tables hold when it runs."""

    def __init__(self, tables: AttentionTables, num_rows: int, page_size: int) -> None:
        self._tables = tables
        self._num_rows = num_rows
        self._page_size = page_size

    def run(self, q: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        assert len(q) == self._num_rows, "the plan is for another number of rows"
        batch = _batch_of(self._tables, self._page_size)
        rows = int(batch.q_indptr[-1])
        out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
        if rows:
            out[:rows] = ReferencePlan(batch, q.device).run(q[:rows], k_cache, v_cache)
        return out


def _batch_of(tables: AttentionTables, page_size: int) -> AttentionBatch:
    """What they hold now, on the host."""
    _, rows, requests = tables.counts.tolist()
    q_indptr, page_indptr = (t[: requests + 1].cpu().numpy() for t in (tables.q_indptr, tables.page_indptr))
    prefix_len, local_len, is_causal = (
        t[:requests].cpu().numpy() for t in (tables.prefix_len, tables.local_len, tables.is_causal)
    )
    return AttentionBatch(
        q_indptr=q_indptr,
        prefix_len=prefix_len,
        local_len=local_len,
        page_indptr=page_indptr,
        page_ids=tables.page_ids[: int(page_indptr[-1])].cpu().numpy(),
        is_causal=is_causal != 0,
        ancestors=tables.ancestors[:rows].cpu().numpy().view(np.uint64),
        page_size=page_size,
    )


def _check_variant(variant: int, variants: tuple[int, ...]) -> None:
    if variant not in variants:
        raise ValueError(f"the attention variant is {variant}; it must be one of {variants}")


def check_limits(batch: AttentionBatch, limits: AttentionLimits) -> None:
    """Raises ValueError for a batch that no AttentionBuffers of these limits takes."""
    if batch.batch_invariant:
        raise ValueError("attention buffers take no batch_invariant batch; give it to plan_attention")
    if batch.page_size != limits.page_size:
        raise ValueError(f"the page size is {batch.page_size}; these attention buffers are for {limits.page_size}")
    rows, requests, pages = int(batch.q_indptr[-1]), len(batch.prefix_len), len(batch.page_ids)
    if rows > limits.max_rows or requests > limits.max_requests or pages > limits.max_pages:
        raise ValueError(
            f"a batch of {rows} rows, {requests} requests and {pages} pages does not fit attention buffers for "
            f"{limits.max_rows}, {limits.max_requests} and {limits.max_pages}; give it to plan_attention"
        )
