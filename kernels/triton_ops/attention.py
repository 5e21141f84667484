"""TritonAttention: plans of single steps, over buffers that grow with them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kernels.ops import AttentionBatch, AttentionLimits
from kernels.triton_ops.attention_buffers import TritonAttentionBuffers
from kernels.triton_ops.attention_planner import TritonAttentionPlan
from kernels.triton_ops.attention_tuning import next_power_of_2


class TritonAttention:
    """Owns the buffers of the plans that no graph holds, one set for each shape of heads and pages."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: dict[tuple[int, int, int, int], TritonAttentionBuffers] = {}
        self._invariant: TritonAttentionBuffers | None = None  # of the last batch_invariant batch

    def plan(self, batch: AttentionBatch) -> EagerPlan:
        """It takes its buffers in its first run, which shows the heads."""
        return EagerPlan(self, batch)

    def load(self, batch: AttentionBatch, q: Tensor, k_cache: Tensor) -> TritonAttentionPlan:
        """Overwrites what the last batch of these shapes loaded."""
        limits = _limits(batch, q, k_cache)
        if batch.batch_invariant:
            self._invariant = buffers = self._made(limits, invariant=batch)
        else:
            key = (limits.page_size, limits.num_heads, limits.num_kv_heads, limits.head_dim)
            held = self._buffers.get(key)
            if held is None or not _fits(limits, held.limits):
                self._buffers[key] = held = self._made(_grown(limits, None if held is None else held.limits))
            buffers = held
        return buffers.plan(len(q), buffers.load(batch))

    def _made(self, limits: AttentionLimits, *, invariant: AttentionBatch | None = None) -> TritonAttentionBuffers:
        """Waits for the device: from the memory of those that these replace, copies may still have to be made."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        return TritonAttentionBuffers(limits, self._device, invariant=invariant)


class EagerPlan:
    """AttentionPlan of one batch, the same for all layers."""

    def __init__(self, attention: TritonAttention, batch: AttentionBatch) -> None:
        self._attention = attention
        self._batch = batch
        self._plan: TritonAttentionPlan | None = None

    def run(self, q: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        if self._plan is None:
            self._plan = self._attention.load(self._batch, q, k_cache)
        return self._plan.run(q, k_cache, v_cache)


def _limits(batch: AttentionBatch, q: Tensor, k_cache: Tensor) -> AttentionLimits:
    """Exactly those of the batch."""
    return AttentionLimits(
        max_rows=len(q),
        max_requests=len(batch.prefix_len),
        max_pages=len(batch.page_ids),
        page_size=batch.page_size,
        num_heads=q.shape[1],
        num_kv_heads=k_cache.shape[1],
        head_dim=q.shape[2],
    )


def _fits(asked: AttentionLimits, held: AttentionLimits) -> bool:
    return (
        asked.max_rows <= held.max_rows
        and asked.max_requests <= held.max_requests
        and asked.max_pages <= held.max_pages
    )


def _grown(asked: AttentionLimits, held: AttentionLimits | None) -> AttentionLimits:
    """Powers of two that hold both, so that growing batches allocate seldom."""
    held = held or asked
    return replace(
        asked,
        max_rows=next_power_of_2(max(asked.max_rows, held.max_rows)),
        max_requests=next_power_of_2(max(asked.max_requests, held.max_requests)),
        max_pages=next_power_of_2(max(asked.max_pages, held.max_pages)),
    )
