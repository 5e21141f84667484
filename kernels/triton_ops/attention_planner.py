"""TritonAttentionPlanner: plans of the attention kernel, and the workspace that they share.

Triton launches on torch's current device, which has to be the tables'.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton.language as tl
from torch import Tensor

from kernels.ops import AttentionBatch, AttentionLimits, AttentionTables
from kernels.round_tables import choose_rows
from kernels.triton_ops.attention_combine import combine
from kernels.triton_ops.attention_kernel import attend
from kernels.triton_ops.attention_tuning import AttentionTuning, TileTuning, next_power_of_2
from kernels.triton_ops.attention_units import units_of
from kernels.triton_ops.overlap import can_overlap

_CPU_SMS = 2  # where Triton interprets
_COMBINE_VALUES = (
    4096  # fp32 that a combining program holds at once: with twice as many, two programs share an SM, not three
)


class TritonAttentionPlanner:
    """AttentionPlanner; with batch_invariant, of exactly one such batch, which sizes it."""

    def __init__(
        self,
        limits: AttentionLimits,
        device: torch.device,
        *,
        tuning: AttentionTuning | None = None,
        invariant: AttentionBatch | None = None,
    ) -> None:
        """tuning: None takes the defaults. invariant: a batch_invariant batch, the only one that may be planned for."""
        tuning = tuning or AttentionTuning()
        self.limits = limits
        self._group = limits.num_heads // limits.num_kv_heads
        self._tiles = tuning.tiles(self._group)
        self._sm_count = _num_sms(device)
        self.rule = tuning.unit_rule(
            self._group, max(1, tuning.split_ctas_per_sm * self._sm_count // limits.num_kv_heads)
        )
        self.fixed_split = 0 if invariant is None else tuning.invariant_split_len
        self.max_units = max(
            self.rule.max_units(limits.max_rows, rows, max_requests=limits.max_requests) for rows in self._tiles
        )
        max_partials = self.rule.max_partials
        if invariant is not None:
            units = units_of(self.rule, invariant, choose_rows(self.rule.numbers, invariant))
            self.max_units, max_partials = len(units.table), max(1, units.num_partials)
        lanes = max(lanes_of(rows, self._group) for rows in self._tiles)
        partials = (max_partials, limits.num_kv_heads, lanes)
        self.partial_out = torch.empty(*partials, block_d(limits.head_dim), dtype=torch.float32, device=device)
        self.partial_lse = torch.empty(partials, dtype=torch.float32, device=device)
        self.arrivals = torch.zeros(partials[:2], dtype=torch.int32, device=device)
        self.overlaps = tuning.overlaps and can_overlap(device)

    def plan(self, tables: AttentionTables, num_rows: int, variant: int) -> TritonAttentionPlan:
        tile = self._tiles[variant]
        limits = self.limits
        units = self.max_units
        if not self.fixed_split:
            units = self.rule.max_units(num_rows, variant, max_requests=limits.max_requests)
        ceiling = max(1, tile.max_ctas_per_sm * self._sm_count // limits.num_kv_heads)
        shape = TileShape(tile, variant, self._group, limits.head_dim, limits.page_size, self.fixed_split)
        grid = limits.num_kv_heads, min(units, ceiling)
        return TritonAttentionPlan(self, tables, shape, num_rows=num_rows, grid=grid)


@dataclass(frozen=True, slots=True)
class TileShape:
    """What a kernel is compiled for, besides the dtype."""

    tuning: TileTuning
    rows: int
    group: int
    head_dim: int
    page_size: int
    fixed_split: int


class TritonAttentionPlan:
    """AttentionPlan over tables that the caller fills."""

    def __init__(
        self,
        planner: TritonAttentionPlanner,
        tables: AttentionTables,
        shape: TileShape,
        *,
        num_rows: int,
        grid: tuple[int, int],
    ) -> None:
        self._planner = planner
        self._tables = tables
        self._shape = shape
        self._num_rows = num_rows
        self._grid = grid

    def run(self, q: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        planner, tables, shape, tile = self._planner, self._tables, self._shape, self._shape.tuning
        assert len(q) == self._num_rows, "the plan is for another number of rows"
        assert q.stride(2) == k_cache.stride(2) == 1, "values of a head must lie side by side"
        assert k_cache.stride() == v_cache.stride(), "K and V must have the same layout"
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        width = block_d(shape.head_dim)
        lanes = lanes_of(shape.rows, shape.group)
        combine_lanes = min(lanes, next_power_of_2(shape.group))
        sizes = dict(
            GROUP=shape.group,
            TILE_ROWS=shape.rows,
            LANES=lanes,
            HEAD_DIM=shape.head_dim,
            BLOCK_D=width,
            COMBINE_LANES=combine_lanes,
            COMBINE_SPLITS=max(1, min(16, _COMBINE_VALUES // (combine_lanes * width))),
            OVERLAPS=planner.overlaps,
        )
        attend[self._grid](
            q,
            k_cache,
            v_cache,
            out,
            tables.counts,
            tables.units,
            tables.q_indptr,
            tables.prefix_len,
            tables.local_len,
            tables.is_causal,
            tables.ancestors,
            tables.page_indptr,
            tables.page_ids,
            planner.partial_out,
            planner.partial_lse,
            planner.arrivals,
            self._num_rows,
            shape.head_dim**-0.5 * math.log2(math.e),
            q.stride(0),
            q.stride(1),
            k_cache.stride(0),
            k_cache.stride(1),
            BLOCK_KV=tile.block_for(shape.head_dim, q.itemsize),
            PAGE_SIZE=shape.page_size,
            INDEX=tl.int32 if k_cache.shape[0] * k_cache.stride(0) < 2**31 else tl.int64,
            FIXED_SPLIT=shape.fixed_split,
            FUSED_COMBINE=tile.fused_combine,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
            launch_pdl=planner.overlaps,
            **sizes,
        )
        if not tile.fused_combine:
            combine[self._grid](
                out,
                tables.counts,
                tables.units,
                tables.q_indptr,
                planner.partial_out,
                planner.partial_lse,
                num_warps=4,
                launch_pdl=planner.overlaps,
                **sizes,
            )
        return out


def block_d(head_dim: int) -> int:
    return max(16, next_power_of_2(head_dim))


def lanes_of(tile_rows: int, group: int) -> int:
    return max(16, next_power_of_2(tile_rows * group))


def _num_sms(device: torch.device) -> int:
    if device.type != "cuda":
        return _CPU_SMS
    return torch.cuda.get_device_properties(device).multi_processor_count
