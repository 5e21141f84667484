"""ReferenceHead: a draft head by the ops of any backend."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kernels.head import GreedyTrees, HeadRows, HeadWeights
from kernels.ops import Ops


class ReferenceHead:
    """Fulfils ``kernels.head.Head``, fit for a captured graph where its ops are."""

    def __init__(self, ops: Ops, weights: HeadWeights) -> None:
        self._ops = ops
        self._weights = weights

    def forward(self, rows: HeadRows, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        ops, w = self._ops, self._weights
        cos_sin = w.cos_sin.index_select(0, rows.positions)
        token_part = ops.rms_norm(ops.embed(rows.tokens, w.embedding), w.token_norm, w.eps)
        normed = ops.rms_norm(rows.hidden, w.feature_norm, w.eps)
        x = torch.cat([token_part, normed], dim=-1)
        residual = normed if w.norm_before_residual else rows.hidden.clone()
        x = ops.attention_block(
            x, w.attention, rows.attention, cos_sin=cos_sin, slots=rows.slots, k_cache=k_cache, v_cache=v_cache
        )
        x = ops.add_rms_norm(x, residual, w.post_norm, w.eps)
        residual += ops.mlp(x, w.gate_up, w.down)
        return ops.rms_norm(residual, w.norm, w.eps) if w.norm_output else residual

    def logits(self, hidden: Tensor) -> Tensor:
        w = self._weights
        if not w.norm_output:
            hidden = self._ops.rms_norm(hidden, w.norm, w.eps)
        return self._ops.logits(hidden, w.lm_head)

    def best(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        log_probs, draft_ids = self._ops.top_k_log_probs(self.logits(hidden), k)
        return log_probs, self._weights.target_ids[draft_ids]

    def grow(self, trees: GreedyTrees, k_cache: Tensor, v_cache: Tensor) -> np.ndarray | None:
        return None
