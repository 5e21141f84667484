"""CpuAttentionPlan: one step's attention by the C kernel."""

from __future__ import annotations

from torch import Tensor

from kernels.cpu_ops.native import NativeKernels
from kernels.cpu_ops.tiles import make_tiles
from kernels.ops import AttentionBatch
from kernels.reference.attention import ReferencePlan


class CpuAttentionPlan:
    """AttentionPlan whose rows get the same bits in any batch, chunk or tree; ReferencePlan for heads of odd shapes."""

    def __init__(self, batch: AttentionBatch, native: NativeKernels) -> None:
        self._batch = batch
        self._native = native
        self.tiles = make_tiles(batch)
        self._reference: ReferencePlan | None = None

    def run(self, q: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        if self._native.fits_attention(q.shape[1], k_cache.shape[1], q.shape[2]):
            return self._native.attention(q, k_cache, v_cache, tiles=self.tiles)
        if self._reference is None:
            self._reference = ReferencePlan(self._batch, q.device)
        return self._reference.run(q, k_cache, v_cache)
