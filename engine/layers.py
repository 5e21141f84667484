"""Attention and MLP of one layer, over fused and sharded weights; target and head share them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from engine.weights.loader import WeightLoader
from kernels.ops import AttentionPlan, AttentionWeights, HeadNorms, Ops


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Whole sizes, before the ranks share them."""

    input_size: int  # of q, k and v: the hidden size, or twice that in a head
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    eps: float
    qkv_bias: bool
    output_bias: bool
    qk_norm: bool
    is_draft: bool = False  # a head's: weights may be rounded


@dataclass(frozen=True, slots=True)
class RowContext:
    """What all layers of a step need to know of its rows."""

    cos_sin: Tensor  # [rows, head_dim] fp32
    slots: Tensor  # [rows] int64
    attention: AttentionPlan


class Attention:
    """Grouped-query attention with rotary positions; optional biases and per-head norms of q and k."""

    def __init__(self, loader: WeightLoader, prefix: str, *, shape: LayerShape, ops: Ops) -> None:
        """prefix: the weights' names up to and including "self_attn."."""
        size, dim = loader.tp.size, shape.head_dim
        parts = [
            ("q_proj", shape.num_heads * dim),
            ("k_proj", shape.num_kv_heads * dim),
            ("v_proj", shape.num_kv_heads * dim),
        ]
        weights = [(f"{prefix}{name}.weight", rows) for name, rows in parts]
        biases = [(f"{prefix}{name}.bias", rows) for name, rows in parts]
        q_size = shape.num_heads * dim
        # Each rank's product is summed over the ranks, so that one rank alone adds the bias.
        has_bias = shape.output_bias and loader.tp.rank == 0
        norms: HeadNorms | None = None
        if shape.qk_norm:
            q_norm, k_norm = (loader.replicated(f"{prefix}{name}_norm.weight", (dim,)) for name in ("q", "k"))
            norms = HeadNorms(q_norm, k_norm, shape.eps)
        prepare = _preparation(shape, ops)
        self.weights = AttentionWeights(
            qkv=prepare(loader.rows(weights, shape.input_size)),
            output=prepare(loader.columns(f"{prefix}o_proj.weight", shape.hidden_size, q_size)),
            num_heads=shape.num_heads // size,
            num_kv_heads=shape.num_kv_heads // size,
            head_dim=dim,
            qkv_bias=loader.rows(biases) if shape.qkv_bias else None,
            output_bias=loader.replicated(f"{prefix}o_proj.bias", (shape.hidden_size,)) if has_bias else None,
            norms=norms,
        )
        self._ops = ops
        self._tp = loader.tp

    def forward(self, x: Tensor, rows: RowContext, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        """x: [rows, input_size] -> [rows, hidden_size]. MUTATES the caches at the rows' slots."""
        added = self._ops.attention_block(
            x,
            self.weights,
            rows.attention,
            cos_sin=rows.cos_sin,
            slots=rows.slots,
            k_cache=k_cache,
            v_cache=v_cache,
        )
        return self._tp.all_reduce(added)


class Mlp:
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, loader: WeightLoader, prefix: str, *, shape: LayerShape, ops: Ops) -> None:
        """prefix: the weights' names up to and including "mlp."."""
        hidden, inner = shape.hidden_size, shape.intermediate_size
        parts = [(f"{prefix}gate_proj.weight", inner), (f"{prefix}up_proj.weight", inner)]
        prepare = _preparation(shape, ops)
        self.gate_up = prepare(loader.rows(parts, hidden))
        self.down = prepare(loader.columns(f"{prefix}down_proj.weight", hidden, inner))
        self._ops = ops
        self._tp = loader.tp

    def forward(self, x: Tensor) -> Tensor:
        """x: [rows, hidden_size] -> [rows, hidden_size]."""
        return self._tp.all_reduce(self._ops.mlp(x, self.gate_up, self.down))


class DecoderLayer:
    """A target's layer. The residual stream is passed apart from what the last layer adds to it."""

    def __init__(self, loader: WeightLoader, prefix: str, *, shape: LayerShape, ops: Ops) -> None:
        """prefix: the weights' names up to and including the layer's number and a dot."""
        hidden = (shape.hidden_size,)
        self.input_norm = loader.replicated(f"{prefix}input_layernorm.weight", hidden)
        self.attention = Attention(loader, f"{prefix}self_attn.", shape=shape, ops=ops)
        self.post_norm = loader.replicated(f"{prefix}post_attention_layernorm.weight", hidden)
        self.mlp = Mlp(loader, f"{prefix}mlp.", shape=shape, ops=ops)


def _preparation(shape: LayerShape, ops: Ops) -> Callable[[Tensor], Tensor]:
    return ops.prepare_draft_weight if shape.is_draft else ops.prepare_weight
