"""TritonAttentionBuffers: the device memory of attention plans, and the plans over it.

Triton launches on torch's current device, which has to be the buffers'.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import triton.language as tl
from torch import Tensor

from kernels.ops import AttentionBatch, AttentionLimits
from kernels.reference.attention_buffers import check_limits
from kernels.triton_ops.attention_combine import combine
from kernels.triton_ops.attention_kernel import attend
from kernels.triton_ops.attention_staging import Section, Staging
from kernels.triton_ops.attention_tuning import AttentionTuning, TileTuning, next_power_of_2
from kernels.triton_ops.attention_units import UnitRule
from kernels.triton_ops.overlap import can_overlap

_CPU_SMS = 2  # where Triton interprets
_COMBINE_VALUES = (
    4096  # fp32 that a combining program holds at once: with twice as many, two programs share an SM, not three
)


class TritonAttentionBuffers:
    """AttentionBuffers; with batch_invariant, of exactly one such batch, which sizes them."""

    def __init__(
        self,
        limits: AttentionLimits,
        device: torch.device,
        *,
        tuning: AttentionTuning | None = None,
        invariant: AttentionBatch | None = None,
    ) -> None:
        """tuning: None takes the defaults. invariant: a batch_invariant batch, the only one that may be loaded."""
        tuning = tuning or AttentionTuning()
        self.limits = limits
        self._group = limits.num_heads // limits.num_kv_heads
        self._tiles = tuning.tiles(self._group)
        programs = tuning.split_ctas_per_sm * _num_sms(device)
        self.rule = UnitRule(tuning, tuple(self._tiles), max(1, programs // limits.num_kv_heads))
        self._fixed_split = 0 if invariant is None else tuning.invariant_split_len
        max_units = max(
            self.rule.max_units(limits.max_rows, rows, max_requests=limits.max_requests) for rows in self._tiles
        )
        max_partials = self.rule.max_partials
        if invariant is not None:
            units = self.rule.make_units(invariant, self.rule.choose_rows(invariant))
            max_units, max_partials = len(units.table), max(1, units.num_partials)

        requests = limits.max_requests
        self._staging = Staging(
            [
                Section("counts", 2, np.int32),
                Section("q_indptr", requests + 1, np.int32),
                Section("prefix_len", requests, np.int32),
                Section("local_len", requests, np.int32),
                Section("is_causal", requests, np.int32),
                Section("page_indptr", requests + 1, np.int32),
                Section("units", 4 * max_units, np.int32),
                Section("ancestors", limits.max_rows, np.uint64),
                Section("page_ids", limits.max_pages, np.int32),
            ],
            device,
        )
        self._tensors = self._staging.tensors
        self.q_indptr = self._tensors["q_indptr"]
        self.prefix_len = self._tensors["prefix_len"]
        self.local_len = self._tensors["local_len"]
        self.ancestors = self._tensors["ancestors"]
        self.page_indptr = self._tensors["page_indptr"]
        self.page_ids = self._tensors["page_ids"]

        lanes = max(lanes_of(rows, self._group) for rows in self._tiles)
        partials = (max_partials, limits.num_kv_heads, lanes)
        self.partial_out = torch.empty(*partials, block_d(limits.head_dim), dtype=torch.float32, device=device)
        self.partial_lse = torch.empty(partials, dtype=torch.float32, device=device)
        self.arrivals = torch.zeros(partials[:2], dtype=torch.int32, device=device)
        self.sm_count = _num_sms(device)
        self.overlaps = tuning.overlaps and can_overlap(device)

    @property
    def variants(self) -> tuple[int, ...]:
        return tuple(self._tiles)

    def load(self, batch: AttentionBatch, variant: int | None = None) -> int:
        if variant is None:
            variant = self.rule.choose_rows(batch)
        if variant not in self._tiles:
            raise ValueError(f"the attention variant is {variant}; it must be one of {self.variants}")
        if not self._fixed_split:
            check_limits(batch, self.limits)
        units = self.rule.make_units(batch, variant)
        num_rows = int(batch.q_indptr[-1])
        self._staging.upload(
            {
                "counts": np.array((len(units.table), num_rows), np.int32),
                "q_indptr": batch.q_indptr,
                "prefix_len": batch.prefix_len,
                "local_len": batch.local_len,
                "is_causal": batch.is_causal,
                "page_indptr": batch.page_indptr,
                "units": units.table.reshape(-1),
                "ancestors": batch.ancestors,
                "page_ids": batch.page_ids,
            }
        )
        return variant

    def plan(self, num_rows: int, variant: int) -> TritonAttentionPlan:
        tile = self._tiles[variant]
        limits = self.limits
        if self._fixed_split:
            units = len(self._tensors["units"]) // 4
        else:
            units = self.rule.max_units(num_rows, variant, max_requests=limits.max_requests)
        ceiling = max(1, tile.max_ctas_per_sm * self.sm_count // limits.num_kv_heads)
        shape = TileShape(tile, variant, self._group, limits.head_dim, limits.page_size, self._fixed_split)
        return TritonAttentionPlan(self, shape, num_rows=num_rows, grid=(limits.num_kv_heads, min(units, ceiling)))

    @property
    def tables(self) -> dict[str, Tensor]:
        """All that the kernel reads besides q and the caches, by the names of its parameters."""
        return self._tensors


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
    """AttentionPlan over buffers that the caller loads."""

    def __init__(
        self, buffers: TritonAttentionBuffers, shape: TileShape, *, num_rows: int, grid: tuple[int, int]
    ) -> None:
        self._buffers = buffers
        self._shape = shape
        self._num_rows = num_rows
        self._grid = grid

    def run(self, q: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        buffers, shape, tile = self._buffers, self._shape, self._shape.tuning
        assert len(q) == self._num_rows, "the plan is for another number of rows"
        assert q.stride(2) == k_cache.stride(2) == 1, "values of a head must lie side by side"
        assert k_cache.stride() == v_cache.stride(), "K and V must have the same layout"
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        tables = buffers.tables
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
            OVERLAPS=buffers.overlaps,
        )
        attend[self._grid](
            q,
            k_cache,
            v_cache,
            out,
            tables["counts"],
            tables["units"],
            tables["q_indptr"],
            tables["prefix_len"],
            tables["local_len"],
            tables["is_causal"],
            tables["ancestors"],
            tables["page_indptr"],
            tables["page_ids"],
            buffers.partial_out,
            buffers.partial_lse,
            buffers.arrivals,
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
            launch_pdl=buffers.overlaps,
            **sizes,
        )
        if not tile.fused_combine:
            combine[self._grid](
                out,
                tables["counts"],
                tables["units"],
                tables["q_indptr"],
                buffers.partial_out,
                buffers.partial_lse,
                num_warps=4,
                launch_pdl=buffers.overlaps,
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
