"""TritonOps: the reference ops with Triton kernels in their place."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kernels.growth import GrowingTrees
from kernels.ops import (
    AttentionBatch,
    AttentionBuffers,
    AttentionLimits,
    AttentionPlan,
    AttentionPlanner,
    HeadNorms,
    PendingWalk,
    SamplingBatch,
    TreeBatch,
    WalkLimits,
    WalkResult,
)
from kernels.reference.ops import ReferenceOps
from kernels.triton_ops import activation, grow, kv, norm, philox, rope, select
from kernels.triton_ops.attention import TritonAttention
from kernels.triton_ops.attention_buffers import TritonAttentionBuffers
from kernels.triton_ops.attention_planner import TritonAttentionPlanner
from kernels.triton_ops.linear import ROUNDED_ROWS, SKINNY_ROWS, SkinnyLinear
from kernels.triton_ops.overlap import can_overlap
from kernels.triton_ops.rounded_weight import DraftWeight, RoundedWeight
from kernels.triton_ops.rows import fill_drawn, gather_rows, scatter_rows
from kernels.triton_ops.walk import Walker


class TritonOps(ReferenceOps):
    """Fulfils ``kernels.ops.Ops`` on a CUDA device, and on the CPU where Triton interprets its kernels, for tests.

    No op of a step waits for the device or allocates outside torch's caching allocator, so that each can be captured
    in a CUDA graph.
    """

    name = "triton"

    def __init__(
        self,
        device: torch.device | str = "cuda",
        *,
        overlap: bool | None = None,
        skinny_rows: int = SKINNY_ROWS,
        rounded_rows: int = ROUNDED_ROWS,
    ) -> None:
        """overlap: whether kernels start while the one before ends; None: where the device can.

        skinny_rows: products of at most so many rows are computed by Triton, others by cuBLAS. rounded_rows: the same
        of draft weights, whose products Triton computes in 8 bits; 0 rounds none.
        """
        super().__init__(device)
        self._overlap = can_overlap(self.device) if overlap is None else overlap
        self._skinny_rows = skinny_rows
        self._rounded_rows = rounded_rows
        self._skinny = SkinnyLinear(self.device, overlap=self._overlap)
        self._attention = TritonAttention(self.device)
        self._walker = Walker(self.device)
        self._pool_tables: dict[tuple[int, ...], kv.PoolTable] = {}

    @property
    def supports_graphs(self) -> bool:
        return self.device.type == "cuda"

    def grow_beam(self, trees: GrowingTrees, log_probs: Tensor, draft_ids: Tensor, level: int) -> None:
        grow.grow_beam(trees, log_probs, draft_ids, level)

    def choose_nodes(self, trees: GrowingTrees) -> None:
        grow.choose_nodes(trees)

    def prepare_draft_weight(self, weight: Tensor) -> Tensor:
        """In bf16 and fp16 with a copy of 8 bits and a scale a row, for few rows; many rows take the weight itself."""
        prepared = self.prepare_weight(weight)
        return DraftWeight.of(prepared) if self._rounded_rows and SkinnyLinear.can_round(prepared) else prepared

    def rounded_bytes(self, weight: Tensor) -> int:
        return weight.rounded.nbytes if isinstance(weight, DraftWeight) else 0

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        skinny = self._skinny_weight(x, weight)
        if skinny is not None:
            return self._skinny.linear(x, skinny, bias)
        return super().linear(x, weight, bias)

    def logits(self, x: Tensor, weight: Tensor) -> Tensor:
        skinny = self._skinny_weight(x, weight)
        if skinny is not None:
            return self._skinny.linear(x, skinny, out_dtype=torch.float32)
        if x.dtype == torch.float32 or x.device.type != "cuda":
            return super().logits(x, weight)
        return torch.mm(x, weight.t(), out_dtype=torch.float32)

    def _skinny_weight(self, x: Tensor, weight: Tensor) -> Tensor | RoundedWeight | None:
        """The weight as Triton is to multiply x with it; None: it is not."""
        form: Tensor | RoundedWeight = weight
        max_rows = self._skinny_rows
        if isinstance(weight, DraftWeight):
            form, max_rows = weight.rounded, self._rounded_rows
        return form if len(x) <= max_rows and SkinnyLinear.fits(x, weight) else None

    def embed(self, ids: Tensor, table: Tensor) -> Tensor:
        return gather_rows(table, ids)

    def fill_drawn(self, tokens: Tensor, drawn: Tensor) -> None:
        fill_drawn(tokens, drawn)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return norm.rms_norm(x, weight, eps, overlap=self._overlap)

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, capture: Tensor | None = None
    ) -> Tensor:
        return norm.add_rms_norm(x, residual, weight, eps, capture=capture, overlap=self._overlap)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return activation.silu_mul(gate_up, overlap=self._overlap)

    def rope(self, q: Tensor, k: Tensor, cos_sin: Tensor) -> None:
        rope.rotate(q, k, cos_sin, overlap=self._overlap)

    def append_kv(self, k: Tensor, v: Tensor, slots: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
        scatter_rows(k_cache.flatten(1), slots, k.flatten(1))
        scatter_rows(v_cache.flatten(1), slots, v.flatten(1))

    def rope_append(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cos_sin: Tensor,
        slots: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        *,
        norms: HeadNorms | None = None,
    ) -> Tensor:
        target = rope.AppendTarget(slots, k_cache, v_cache)
        rope.rotate_append((q, k, v), cos_sin, target, norms=norms, overlap=self._overlap)
        return q

    def move_rows(self, pools: list[Tensor], src: Tensor, dst: Tensor) -> None:
        """The first call for some pools waits for the device; later ones can be captured."""
        kv.move_rows(self._pool_table(pools), src, dst)

    def scatter_rows(self, pool: Tensor, slots: Tensor, rows: Tensor) -> None:
        scatter_rows(pool, slots, rows)

    def _pool_table(self, pools: list[Tensor]) -> kv.PoolTable:
        key = tuple(n for pool in pools for n in (pool.data_ptr(), pool.nbytes, len(pool)))
        table = self._pool_tables.get(key)
        if table is None:
            table = self._pool_tables[key] = kv.PoolTable.of(pools)
        return table

    def plan_attention(self, batch: AttentionBatch) -> AttentionPlan:
        return self._attention.plan(batch)

    def attention_buffers(self, limits: AttentionLimits, *, num_ahead: int = 0) -> AttentionBuffers:
        return TritonAttentionBuffers(limits, self.device, num_ahead=num_ahead)

    def attention_planner(self, limits: AttentionLimits) -> AttentionPlanner:
        return TritonAttentionPlanner(limits, self.device)

    def gumbel(self, seeds: np.ndarray, positions: np.ndarray, ids: Tensor) -> Tensor:
        bits, where = (torch.from_numpy(array).to(self.device) for array in (seeds.view(np.int64), positions))
        return philox.gumbel_rows(bits, where, ids.expand(len(seeds), -1))

    def gumbel_rows(self, seeds: Tensor, positions: Tensor, ids: Tensor) -> Tensor:
        return philox.gumbel_rows(seeds, positions, ids)

    def top_k(self, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
        return super().top_k(scores, k) if k > select.MAX_K else select.top_k(scores, k)

    def top_k_log_probs(self, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
        return super().top_k_log_probs(scores, k) if k > select.MAX_K else select.top_k_log_probs(scores, k)

    def prepare_walk(self, limits: WalkLimits) -> None:
        self._walker.prepare(limits)
        tokens = torch.zeros(1, dtype=torch.int64, device=self.device)
        fill_drawn(tokens, tokens.int())  # compiles it

    def start_walk(self, logits: Tensor, trees: TreeBatch, sampling: SamplingBatch) -> PendingWalk:
        return self._walker.start(logits, trees, sampling)

    def known_walk(self, trees: TreeBatch, walk: WalkResult) -> PendingWalk:
        return self._walker.known(trees, walk)
