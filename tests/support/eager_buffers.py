"""EagerBuffers: AttentionBuffers over any backend's plan_attention, so that graphs can be tested on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.ops import AttentionBatch, AttentionLimits, AttentionPlan
from kernels.reference.ops import ReferenceOps


class BufferedOps(ReferenceOps):
    """ReferenceOps whose attention may be replayed; ``buffers`` are those it handed out last."""

    buffers: EagerBuffers

    def attention_buffers(self, limits: AttentionLimits) -> EagerBuffers:
        self.buffers = EagerBuffers(self, limits)
        return self.buffers


class EagerBuffers:
    """Plans run whatever batch was loaded last, whose rows come first; two variants that do the same."""

    variants = (2, 16)

    def __init__(self, ops: ReferenceOps, limits: AttentionLimits) -> None:
        self.limits = limits
        self.ran: list[tuple[int, int]] = []  # rows and variant of each run
        self._ops = ops
        self._plan: AttentionPlan | None = None
        self._num_rows = 0

    def load(self, batch: AttentionBatch, variant: int | None = None) -> int:
        self._num_rows = int(batch.q_indptr[-1])
        self._plan = self._ops.plan_attention(batch)
        return variant or (16 if batch.is_causal.any() else 2)

    def plan(self, num_rows: int, variant: int) -> _Plan:
        return _Plan(self, num_rows, variant)

    def run(self, rows: tuple[int, int], q: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        self.ran.append(rows)
        assert self._plan is not None and len(q) == rows[0] >= self._num_rows
        mixed = torch.zeros_like(q)
        if self._num_rows:
            mixed[: self._num_rows] = self._plan.run(q[: self._num_rows], k_cache, v_cache)
        return mixed


class _Plan:
    def __init__(self, buffers: EagerBuffers, num_rows: int, variant: int) -> None:
        self._buffers = buffers
        self._rows = (num_rows, variant)

    def run(self, q: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        return self._buffers.run(self._rows, q, k_cache, v_cache)
