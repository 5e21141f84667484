"""ReferenceAttentionBuffers: what device code wrote is read back, and planned anew, in every run."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kernels.ops import AttentionBatch, AttentionLimits
from kernels.reference.attention import ReferencePlan


class ReferenceAttentionBuffers:
    """AttentionBuffers on any device. Its plans wait for the device, so no graph holds them."""

    variants: tuple[int, ...] = (1,)

    def __init__(self, limits: AttentionLimits, device: torch.device) -> None:
        self.limits = limits
        self.q_indptr = torch.zeros(limits.max_requests + 1, dtype=torch.int32, device=device)
        self.prefix_len = torch.zeros(limits.max_requests, dtype=torch.int32, device=device)
        self.local_len = torch.zeros(limits.max_requests, dtype=torch.int32, device=device)
        self.ancestors = torch.zeros(limits.max_rows, dtype=torch.int64, device=device)
        self.page_indptr = torch.zeros(limits.max_requests + 1, dtype=torch.int32, device=device)
        self.page_ids = torch.zeros(limits.max_pages, dtype=torch.int32, device=device)
        self._is_causal = np.zeros(0, np.bool_)

    def load(self, batch: AttentionBatch, variant: int | None = None) -> int:
        check_limits(batch, self.limits)
        if variant not in (None, *self.variants):
            raise ValueError(f"the attention variant is {variant}; it must be one of {self.variants}")
        for tensor, array in (
            (self.q_indptr, batch.q_indptr),
            (self.prefix_len, batch.prefix_len),
            (self.local_len, batch.local_len),
            (self.ancestors, batch.ancestors.view(np.int64)),
            (self.page_indptr, batch.page_indptr),
            (self.page_ids, batch.page_ids),
        ):
            tensor[: len(array)] = torch.from_numpy(np.array(array))
        self._is_causal = batch.is_causal.copy()
        return self.variants[0]

    def plan(self, num_rows: int, variant: int) -> _BufferedPlan:
        if variant not in self.variants:
            raise ValueError(f"the attention variant is {variant}; it must be one of {self.variants}")
        return _BufferedPlan(self, num_rows)

    def batch(self) -> AttentionBatch:
        """What is loaded now, on the host."""
        requests = len(self._is_causal)
        q_indptr, page_indptr = (t[: requests + 1].cpu().numpy() for t in (self.q_indptr, self.page_indptr))
        return AttentionBatch(
            q_indptr=q_indptr,
            prefix_len=self.prefix_len[:requests].cpu().numpy(),
            local_len=self.local_len[:requests].cpu().numpy(),
            page_indptr=page_indptr,
            page_ids=self.page_ids[: int(page_indptr[-1])].cpu().numpy(),
            is_causal=self._is_causal,
            ancestors=self.ancestors[: int(q_indptr[-1])].cpu().numpy().view(np.uint64),
            page_size=self.limits.page_size,
        )


class _BufferedPlan:
    """AttentionPlan of whatever the buffers hold when it runs."""

    def __init__(self, buffers: ReferenceAttentionBuffers, num_rows: int) -> None:
        self._buffers = buffers
        self._num_rows = num_rows

    def run(self, q: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        assert len(q) == self._num_rows, "the plan is for another number of rows"
        batch = self._buffers.batch()
        rows = int(batch.q_indptr[-1])
        out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
        if rows:
            out[:rows] = ReferencePlan(batch, q.device).run(q[:rows], k_cache, v_cache)
        return out


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
