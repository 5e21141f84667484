"""FlashInferOps: the Triton backend with FlashInfer's attention for eager steps."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.flashinfer_ops.attention import FlashInferAttention
from kernels.flashinfer_ops.paged_batch import PagedBatch
from kernels.ops import AttentionBatch, AttentionBuffers, AttentionLimits, AttentionPlan, AttentionPlanner
from kernels.triton_ops.ops import TritonOps

_SERVED_DTYPE = torch.bfloat16


class FlashInferOps(TritonOps):
    """Fulfils ``kernels.ops.Ops`` on a CUDA device.

    FlashInfer attends for decode rows, chains and chunks in 16 bits that no graph holds; Triton for trees that branch,
    for fp32, and in graphs, whose grid FlashInfer's plan would change with every batch.
    """

    name = "flashinfer"

    def __init__(self, device: torch.device | str = "cuda") -> None:
        super().__init__(device)
        self._flashinfer = FlashInferAttention(self.device)

    def plan_attention(self, batch: AttentionBatch) -> AttentionPlan:
        paged = PagedBatch.of(batch)
        other = super().plan_attention(batch)
        return other if paged is None else _FlashInferPlan(self._flashinfer, paged, other)

    def attention_buffers(self, limits: AttentionLimits, *, num_ahead: int = 0) -> AttentionBuffers:
        """Compiles FlashInfer's kernel too: what serves from graphs may meet its first eager step in traffic."""
        self._compile(limits)
        return super().attention_buffers(limits, num_ahead=num_ahead)

    def attention_planner(self, limits: AttentionLimits) -> AttentionPlanner:
        """Compiles FlashInfer's kernel, as ``attention_buffers``."""
        self._compile(limits)
        return super().attention_planner(limits)

    def _compile(self, limits: AttentionLimits) -> None:
        if self._flashinfer.fits(_SERVED_DTYPE, limits.head_dim):
            self._flashinfer.compile(_SERVED_DTYPE, limits.head_dim)


class _FlashInferPlan:
    """AttentionPlan of one batch; ``other`` runs what FlashInfer has no kernel for."""

    def __init__(self, attention: FlashInferAttention, batch: PagedBatch, other: AttentionPlan) -> None:
        self._attention = attention
        self._batch = batch
        self._other = other
        self._is_planned = False

    def run(self, q: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        if not self._attention.fits(q.dtype, q.shape[2]):
            return self._other.run(q, k_cache, v_cache)
        if not self._is_planned:
            self._attention.plan(self._batch, q, k_cache)
            self._is_planned = True
        return self._attention.run(q, k_cache, v_cache, page_size=self._batch.page_size)
