"""CpuOps: the reference ops with the C kernels in place of torch where these are built."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu_ops.attention import CpuAttentionPlan
from kernels.cpu_ops.head import CpuHead
from kernels.cpu_ops.huge_pages import HugePages
from kernels.cpu_ops.native import NativeKernels, load_native
from kernels.cpu_ops.weights import can_round, rounded_shape
from kernels.head import Head, HeadWeights
from kernels.ops import AttentionBatch, AttentionPlan, AttentionWeights
from kernels.reference.ops import ReferenceOps


class CpuOps(ReferenceOps):
    """Fulfils ``kernels.ops.Ops`` on the CPU, in bf16 and fp32.

    Every op's result for a row depends on that row alone, bit for bit: a tree's node gets the logits of a plain step.
    So no product is left to torch, whatever the number of rows, and weights are packed at load, in the order in which
    C reads them: ``python -m bench.cpu_linear`` times both. Without the extension this is ReferenceOps.
    """

    name = "cpu"

    def __init__(self, native: NativeKernels | None = None) -> None:
        """native: the kernels to use; None takes ``load_native()``'s."""
        super().__init__("cpu")
        self._native = load_native() if native is None else native
        self._huge_pages = HugePages()

    @property
    def has_threads(self) -> bool:
        """Whether the work runs on threads of the kernels' own, and not on torch's."""
        return self._native is not None

    def prepare_weight(self, weight: Tensor) -> Tensor:
        if self._native is None:
            return super().prepare_weight(weight)
        packed = self._huge_pages.empty(tuple(weight.shape), weight.dtype)
        self._native.pack(weight, packed)
        return packed

    def prepare_draft_weight(self, weight: Tensor) -> Tensor:
        """In bf16 rounded to 8 bits with a scale a row, where C can: half the bytes to read, 0.5 to 0.6 of the time."""
        if self._native is None or not can_round(weight):
            return self.prepare_weight(weight)
        rounded = self._huge_pages.empty(rounded_shape(weight), torch.int8)
        self._native.pack_rounded(weight, rounded)
        return rounded

    def prepare_head(self, weights: HeadWeights) -> Head:
        attention = weights.attention
        heads = (attention.num_heads, attention.num_kv_heads, attention.head_dim)
        if self._native is None or not self._native.fits_attention(*heads):
            return super().prepare_head(weights)
        return CpuHead(self, weights, self._native)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if self._native is None:
            return super().linear(x, weight, bias)
        return self._native.linear(x, weight, bias)

    def logits(self, x: Tensor, weight: Tensor) -> Tensor:
        if self._native is None:
            return super().logits(x, weight)
        return self._native.linear(x, weight, out_dtype=torch.float32)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if self._native is None:
            return super().rms_norm(x, weight, eps)
        return self._native.rms_norm(x, weight, eps)

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, capture: Tensor | None = None
    ) -> Tensor:
        if self._native is None:
            return super().add_rms_norm(x, residual, weight, eps, capture=capture)
        normed = self._native.rms_norm(x, weight, eps, residual=residual)
        if capture is not None:
            capture.copy_(residual)
        return normed

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        if self._native is None:
            return super().silu_mul(gate_up)
        return self._native.silu_mul(gate_up)

    def rope(self, q: Tensor, k: Tensor, cos_sin: Tensor) -> None:
        if self._native is None:
            super().rope(q, k, cos_sin)
        else:
            self._native.rope(q, k, cos_sin)

    def append_kv(self, k: Tensor, v: Tensor, slots: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
        if self._native is None:
            super().append_kv(k, v, slots, k_cache, v_cache)
        else:
            self._native.append(k, slots, k_cache)
            self._native.append(v, slots, v_cache)

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
        places = {"cos_sin": cos_sin, "slots": slots, "k_cache": k_cache, "v_cache": v_cache}
        heads = (weights.num_heads, weights.num_kv_heads, weights.head_dim)
        if self._native is None or not self._native.fits_attention(*heads):
            return super().attention_block(x, weights, plan, **places)
        assert isinstance(plan, CpuAttentionPlan)
        return self._native.attention_block(x, weights, plan.tiles, **places)

    def mlp(self, x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        if self._native is None:
            return super().mlp(x, gate_up, down)
        return self._native.mlp(x, gate_up, down)

    def plan_attention(self, batch: AttentionBatch) -> AttentionPlan:
        if self._native is None:
            return super().plan_attention(batch)
        return CpuAttentionPlan(batch, self._native)

    def top_k(self, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
        if self._native is None:
            return super().top_k(scores, k)
        return self._native.top_k(scores, k, is_log_prob=False)

    def top_k_log_probs(self, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
        if self._native is None:
            return super().top_k_log_probs(scores, k)
        return self._native.top_k(scores, k, is_log_prob=True)
