"""TritonAttentionBuffers: an attention planner with the tables that its plans read."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.ops import AttentionBatch, AttentionLimits
from kernels.reference.attention_buffers import check_limits
from kernels.triton_ops.attention_planner import TritonAttentionPlan, TritonAttentionPlanner
from kernels.triton_ops.attention_staging import Staging
from kernels.triton_ops.attention_tuning import AttentionTuning


class TritonAttentionBuffers:
    """AttentionBuffers; with batch_invariant, of exactly one such batch, which sizes them."""

    def __init__(
        self,
        limits: AttentionLimits,
        device: torch.device,
        *,
        tuning: AttentionTuning | None = None,
        invariant: AttentionBatch | None = None,
        num_ahead: int = 0,
    ) -> None:
        """tuning: None takes the defaults. invariant: a batch_invariant batch, the only one that may be loaded."""
        self.limits = limits
        self._planner = TritonAttentionPlanner(limits, device, tuning=tuning, invariant=invariant)
        self.rule = self._planner.rule
        self._staging = Staging(
            limits, self.rule, max_units=self._planner.max_units, num_ahead=num_ahead, device=device
        )
        self.ahead = self._staging.upload
        tables = self._staging.tables
        self.q_indptr = tables.q_indptr
        self.prefix_len = tables.prefix_len
        self.local_len = tables.local_len
        self.ancestors = tables.ancestors
        self.page_indptr = tables.page_indptr
        self.page_ids = tables.page_ids

    @property
    def variants(self) -> tuple[int, ...]:
        return self.rule.rows

    @property
    def arrivals(self) -> Tensor:
        """Of the workspace: 0 between launches."""
        return self._planner.arrivals

    def load(self, batch: AttentionBatch, variant: int | None = None, *, start: int | None = None) -> int:
        if variant not in (None, *self.variants):
            raise ValueError(f"the attention variant is {variant}; it must be one of {self.variants}")
        if not self._planner.fixed_split:
            check_limits(batch, self.limits)
        return self._staging.load(batch, variant or 0, start=start)

    def plan(self, num_rows: int, variant: int) -> TritonAttentionPlan:
        return self._planner.plan(self._staging.tables, num_rows, variant)
