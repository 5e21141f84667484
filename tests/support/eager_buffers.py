"""What stands in for graphs on the CPU: buffers that tell which plans ran, and a capture that calls again."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.graph_capture import Launch
from kernels.ops import AttentionBatch, AttentionLimits, AttentionPlan
from kernels.reference.attention_buffers import ReferenceAttentionBuffers
from kernels.reference.ops import ReferenceOps


def replay_by_calling(launch: Launch) -> Launch:
    """A Capture for any device: the replay launches everything again."""
    launch()
    return launch


class BufferedOps(ReferenceOps):
    """ReferenceOps whose attention may be replayed; ``buffers`` are those it handed out last."""

    buffers: EagerBuffers

    def attention_buffers(self, limits: AttentionLimits, *, num_ahead: int = 0) -> EagerBuffers:
        self.buffers = EagerBuffers(limits, num_ahead=num_ahead)
        return self.buffers


class EagerBuffers(ReferenceAttentionBuffers):
    """Two variants that do the same; the wide one is taken where there are chunks."""

    variants = (2, 16)

    def __init__(self, limits: AttentionLimits, *, num_ahead: int) -> None:
        super().__init__(limits, torch.device("cpu"), num_ahead=num_ahead)
        self.ran: list[tuple[int, int]] = []  # rows and variant of each run

    def load(self, batch: AttentionBatch, variant: int | None = None, *, start: int | None = None) -> int:
        super().load(batch, variant, start=start)
        return variant or (16 if batch.is_causal.any() else 2)

    def plan(self, num_rows: int, variant: int) -> _Plan:
        return _Plan(self, super().plan(num_rows, variant), (num_rows, variant))


class _Plan:
    def __init__(self, buffers: EagerBuffers, plan: AttentionPlan, rows: tuple[int, int]) -> None:
        self._buffers = buffers
        self._plan = plan
        self._rows = rows

    def run(self, q: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        self._buffers.ran.append(self._rows)
        return self._plan.run(q, k_cache, v_cache)
