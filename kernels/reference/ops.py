"""ReferenceOps: every op of the contract in plain torch, and the base of backends that override some."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from kernels.growth import GrowingTrees
from kernels.head import Head, HeadWeights
from kernels.ops import (
    AttentionBatch,
    AttentionBuffers,
    AttentionLimits,
    AttentionPlan,
    AttentionPlanner,
    AttentionWeights,
    HeadNorms,
    PendingWalk,
    SamplingBatch,
    TreeBatch,
    WalkLimits,
    WalkResult,
)
from kernels.reference import growth, philox, select
from kernels.reference.attention import ReferencePlan
from kernels.reference.attention_buffers import ReferenceAttentionBuffers, ReferenceAttentionPlanner
from kernels.reference.head import ReferenceHead
from kernels.reference.walk import FinishedWalk, sample_and_walk


class ReferenceOps:
    """Fulfils ``kernels.ops.Ops`` on one torch device."""

    name = "reference"

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)

    @property
    def supports_graphs(self) -> bool:
        return False

    def prepare_weight(self, weight: Tensor) -> Tensor:
        return weight.to(self.device).contiguous()

    def prepare_draft_weight(self, weight: Tensor) -> Tensor:
        return self.prepare_weight(weight)

    def rounded_bytes(self, weight: Tensor) -> int:
        return 0

    def prepare_head(self, weights: HeadWeights) -> Head:
        return ReferenceHead(self, weights)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return functional.linear(x, weight, bias)

    def logits(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.linear(x, weight).float()

    def embed(self, ids: Tensor, table: Tensor) -> Tensor:
        return table.index_select(0, ids)

    def fill_drawn(self, tokens: Tensor, drawn: Tensor) -> None:
        drawn = drawn.to(tokens.device, tokens.dtype)
        tokens.copy_(torch.where(tokens < 0, drawn[(-1 - tokens).clamp_(min=0)], tokens))

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(eps))
        return (wide * scale).to(x.dtype).mul_(weight)

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, capture: Tensor | None = None
    ) -> Tensor:
        residual.add_(x)
        if capture is not None:
            capture.copy_(residual)
        return self.rms_norm(residual, weight, eps)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)

    def rope(self, q: Tensor, k: Tensor, cos_sin: Tensor) -> None:
        cos, sin = cos_sin.unsqueeze(1).chunk(2, dim=-1)
        for x in (q, k):
            low, high = x.float().chunk(2, dim=-1)
            x.copy_(torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1))

    def append_kv(self, k: Tensor, v: Tensor, slots: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
        k_cache.index_copy_(0, slots, k)
        v_cache.index_copy_(0, slots, v)

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
        if norms is not None:
            q = self.rms_norm(q, norms.q, norms.eps)
            k = self.rms_norm(k, norms.k, norms.eps)
        self.rope(q, k, cos_sin)
        self.append_kv(k, v, slots, k_cache, v_cache)
        return q

    def attention_block(
        self,
        x: Tensor,
        weights: AttentionWeights,
        plan: AttentionPlan,
        *,
        cos_sin: Tensor,
        slots: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
    ) -> Tensor:
        qkv = self.linear(x, weights.qkv, weights.qkv_bias).view(x.shape[0], -1, weights.head_dim)
        q, k, v = qkv.split_with_sizes([weights.num_heads, weights.num_kv_heads, weights.num_kv_heads], dim=1)
        q = self.rope_append(q, k, v, cos_sin, slots, k_cache, v_cache, norms=weights.norms)
        return self.linear(plan.run(q, k_cache, v_cache).flatten(1), weights.output, weights.output_bias)

    def mlp(self, x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        return self.linear(self.silu_mul(self.linear(x, gate_up)), down)

    def plan_attention(self, batch: AttentionBatch) -> AttentionPlan:
        return ReferencePlan(batch, self.device)

    def attention_buffers(self, limits: AttentionLimits, *, num_ahead: int = 0) -> AttentionBuffers:
        return ReferenceAttentionBuffers(limits, self.device, num_ahead=num_ahead)

    def attention_planner(self, limits: AttentionLimits) -> AttentionPlanner:
        return ReferenceAttentionPlanner(limits)

    def move_rows(self, pools: list[Tensor], src: Tensor, dst: Tensor) -> None:
        for pool in pools:
            pool.index_copy_(0, dst, pool.index_select(0, src))

    def scatter_rows(self, pool: Tensor, slots: Tensor, rows: Tensor) -> None:
        pool.index_copy_(0, slots, rows)

    def prepare_walk(self, limits: WalkLimits) -> None:
        """Nothing to prepare: a walk is computed at once, and allocates what it needs."""

    def start_walk(self, logits: Tensor, trees: TreeBatch, sampling: SamplingBatch) -> PendingWalk:
        return FinishedWalk(sample_and_walk(self, logits, trees, sampling))

    def known_walk(self, trees: TreeBatch, walk: WalkResult) -> PendingWalk:
        return FinishedWalk(walk)

    def gumbel(self, seeds: np.ndarray, positions: np.ndarray, ids: Tensor) -> Tensor:
        return torch.from_numpy(philox.gumbel(seeds, positions, ids.cpu().numpy())).to(self.device)

    def top_k(self, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
        return select.top_k(scores, k)

    def gumbel_rows(self, seeds: Tensor, positions: Tensor, ids: Tensor) -> Tensor:
        return self.gumbel(seeds.cpu().numpy().view(np.uint64), positions.cpu().numpy(), ids)

    def top_k_log_probs(self, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
        values, indices = self.top_k(scores, k)
        return values - scores.logsumexp(1, keepdim=True), indices

    def grow_beam(self, trees: GrowingTrees, log_probs: Tensor, draft_ids: Tensor, level: int) -> None:
        growth.grow_beam(trees, log_probs, draft_ids, level)

    def choose_nodes(self, trees: GrowingTrees) -> None:
        growth.choose_nodes(trees)
