"""CpuHead: a draft head in two C calls, one for its layer and one for the ranking of its guesses."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kernels.cpu_ops.attention import CpuAttentionPlan
from kernels.cpu_ops.native import NativeKernels, address
from kernels.cpu_ops.weights import address_of_weight
from kernels.head import GreedyTrees, HeadRows, HeadWeights
from kernels.ops import Ops
from kernels.reference.head import ReferenceHead

_MAX_BEAM = 64  # grow.h


class CpuHead(ReferenceHead):
    """ReferenceHead's bits, for heads that fit the attention in C.

    Raises IndexError for a token, position or slot out of range. Torch's dispatch of some thirty small ops, with caches
    that a target's step has emptied, took a third of a small tree's time (``python -m bench.cpu_step``).
    """

    def __init__(self, ops: Ops, weights: HeadWeights, native: NativeKernels) -> None:
        super().__init__(ops, weights)
        w, attention = weights, weights.attention
        hidden, is_bf16 = len(w.norm), w.norm.dtype == torch.bfloat16
        vectors = (w.embedding, w.cos_sin, w.token_norm, w.feature_norm, w.post_norm, w.norm, w.target_ids)
        assert all(tensor.is_contiguous() for tensor in vectors) and w.norm.dtype in (torch.bfloat16, torch.float32)
        assert w.cos_sin.dtype == torch.float32 and w.target_ids.dtype == torch.int64
        assert w.cos_sin.shape[1] == attention.head_dim and w.embedding.shape[1] == hidden
        self._native = native
        self._hidden = hidden
        norms = attention.norms
        self._floats = w.eps, 0.0 if norms is None else norms.eps, attention.head_dim**-0.5
        self._forward_weights = (
            w.embedding.data_ptr(),
            len(w.embedding),
            w.cos_sin.data_ptr(),
            len(w.cos_sin),
            w.token_norm.data_ptr(),
            w.feature_norm.data_ptr(),
            w.post_norm.data_ptr(),
            w.norm.data_ptr() if w.norm_output else 0,
            w.norm_before_residual,
            *address_of_weight(attention.qkv),
            address(attention.qkv_bias),
            address(None if norms is None else norms.q),
            address(None if norms is None else norms.k),
            *address_of_weight(attention.output),
            address(attention.output_bias),
            *address_of_weight(w.gate_up),
            *address_of_weight(w.down),
            hidden,
            w.gate_up.shape[0] // 2,
            attention.num_heads,
            attention.num_kv_heads,
            attention.head_dim,
            is_bf16,
            native.num_threads,
        )
        self._best_weights = (
            0 if w.norm_output else w.norm.data_ptr(),
            *address_of_weight(w.lm_head),
            w.target_ids.data_ptr(),
            hidden,
            len(w.target_ids),
            is_bf16,
            native.num_threads,
        )

    def forward(self, rows: HeadRows, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        assert isinstance(rows.attention, CpuAttentionPlan)
        tiles, hidden, num_rows = rows.attention.tiles, rows.hidden.contiguous(), len(rows.tokens)
        num_slots = len(k_cache)
        out = torch.empty_like(hidden)
        assert hidden.shape == (num_rows, self._hidden) and hidden.dtype == k_cache.dtype == self._weights.norm.dtype
        assert k_cache.is_contiguous() and v_cache.is_contiguous() and k_cache.shape == v_cache.shape
        assert rows.tokens.dtype == rows.positions.dtype == rows.slots.dtype == torch.int64
        assert len(rows.positions) == len(rows.slots) == num_rows and tiles.num_slots <= num_slots
        self._native.module.head_forward(
            self._native.isa_index,
            *self._forward_weights,
            rows.tokens.data_ptr(),
            hidden.data_ptr(),
            rows.positions.data_ptr(),
            rows.slots.data_ptr(),
            num_rows,
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            num_slots,
            tiles.ancestors.data_ptr(),
            tiles.page_ids.data_ptr(),
            tiles.table.data_ptr(),
            len(tiles.table),
            tiles.page_size,
            out.data_ptr(),
            *self._floats,
        )
        return out

    def best(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        rows, hidden = len(hidden), hidden.contiguous()
        values = torch.empty((rows, k), dtype=torch.float32)
        ids = torch.empty((rows, k), dtype=torch.int64)
        assert hidden.shape[1] == self._hidden and hidden.dtype == self._weights.norm.dtype
        assert 0 < k <= len(self._weights.target_ids)
        self._native.module.head_best(
            self._native.isa_index,
            *self._best_weights,
            hidden.data_ptr(),
            values.data_ptr(),
            ids.data_ptr(),
            rows,
            k,
            self._weights.eps,
        )
        return values, ids

    def grow(self, trees: GreedyTrees, k_cache: Tensor, v_cache: Tensor) -> np.ndarray | None:
        asks, tokens, page_ids, features = trees.asks, trees.tokens, trees.page_ids, trees.features.contiguous()
        nodes = np.empty((len(asks), 2, _MAX_BEAM), np.int32)
        assert asks.dtype == tokens.dtype == np.int64 and page_ids.dtype == np.int32 and asks.shape[1] == 6
        assert trees.least_scores.dtype == np.float32 and len(trees.least_scores) == len(asks)
        assert features.shape == (len(tokens), self._hidden) and features.dtype == k_cache.dtype == v_cache.dtype
        assert k_cache.is_contiguous() and v_cache.is_contiguous() and k_cache.shape == v_cache.shape
        assert (int(page_ids.max()) + 1) * trees.page_size <= len(k_cache)
        self._native.module.head_trees(
            self._native.isa_index,
            *self._forward_weights,
            *self._best_weights,
            asks.ctypes.data,
            trees.least_scores.ctypes.data,
            len(asks),
            tokens.ctypes.data,
            len(tokens),
            features.data_ptr(),
            page_ids.ctypes.data,
            len(page_ids),
            trees.page_size,
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            nodes.ctypes.data,
            *self._floats,
        )
        return nodes
