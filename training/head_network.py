"""HeadNetwork: the EAGLE-3 head in torch modules, which compute what engine.head_model does and can be trained.

Parameters are fp32 under the published names. Each use rounds them to the input's dtype, so that the gradients of
several uses add up in fp32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.head_config import NUM_AUX, HeadConfig
from training.diagonal_attention import diagonal_attention


@dataclass(frozen=True, slots=True)
class ChainKv:
    """K and V of the depths so far, rotated: [b, heads, t, d] each, KV heads repeated for their queries."""

    k: tuple[Tensor, ...]
    v: tuple[Tensor, ...]


class DepthOutput(NamedTuple):
    """Of one depth of all chains."""

    hidden: Tensor  # [b, t, Hd], before the final norm: what the next depth takes
    past: ChainKv  # of this depth and those before


class HeadNetwork(nn.Module):
    """fc, one layer, norm and lm_head. The embedding is the target's, and not trained."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.config = config
        self.fc = _Linear(NUM_AUX * config.target_hidden_size, hidden)
        self.midlayer = _Layer(config)
        self.norm = _Norm(hidden, config.rms_norm_eps)
        self.lm_head = _Linear(hidden, config.draft_vocab_size)

    def fuse(self, aux: Tensor) -> Tensor:
        """aux: [..., 3 H] of the target -> features [..., Hd]."""
        features: Tensor = self.fc(aux)
        return features

    def forward(self, embedded: Tensor, hidden: Tensor, cos_sin: Tensor, past: ChainKv | None) -> DepthOutput:
        """One depth of all chains; see ``diagonal_attention``.

        embedded: [b, t, Hd] of column s's token; hidden: [b, t, Hd], features, or the result of the depth before;
        cos_sin: [t, head_dim] fp32 of the columns' positions; past: of the depths before, None at depth 0.
        """
        output: DepthOutput = self.midlayer(embedded, hidden, cos_sin, past)
        return output


class _Layer(nn.Module):
    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.hidden_norm = _Norm(hidden, eps)
        self.input_layernorm = _Norm(hidden, eps)
        self.post_attention_layernorm = _Norm(hidden, eps)
        self.self_attn = _Attention(config)
        self.mlp = _Mlp(hidden, config.intermediate_size)

    def forward(self, embedded: Tensor, hidden: Tensor, cos_sin: Tensor, past: ChainKv | None) -> DepthOutput:
        x = torch.cat([self.input_layernorm(embedded), self.hidden_norm(hidden)], dim=-1)
        x, past = self.self_attn(x, cos_sin, past)
        residual = hidden + x
        return DepthOutput(residual + self.mlp(self.post_attention_layernorm(residual)), past)


class _Attention(nn.Module):
    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self._heads = (config.num_heads, config.num_kv_heads, config.head_dim)
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = _Linear(2 * config.hidden_size, queries)
        self.k_proj = _Linear(2 * config.hidden_size, keys)
        self.v_proj = _Linear(2 * config.hidden_size, keys)
        self.o_proj = _Linear(queries, config.hidden_size)

    def forward(self, x: Tensor, cos_sin: Tensor, past: ChainKv | None) -> DepthOutput:
        num_heads, num_kv_heads, head_dim = self._heads
        weight = torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight]).to(x.dtype)
        qkv = functional.linear(x, weight).unflatten(-1, (-1, head_dim)).transpose(1, 2)
        q, k, v = qkv.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
        folds = num_heads // num_kv_heads
        q, k = _rotate(q, cos_sin), _rotate(k, cos_sin).repeat_interleave(folds, dim=1)
        v = v.repeat_interleave(folds, dim=1)
        now = ChainKv((k,), (v,)) if past is None else ChainKv((*past.k, k), (*past.v, v))
        out = diagonal_attention(q, (now.k[0], now.v[0]), (_stacked(now.k), _stacked(now.v)))
        return DepthOutput(self.o_proj(out.transpose(1, 2).flatten(2)), now)


class _Mlp(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = _Linear(hidden, inner)
        self.up_proj = _Linear(hidden, inner)
        self.down_proj = _Linear(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class _Linear(nn.Module):
    """Without a bias, and without values yet."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight.to(x.dtype))


class _Norm(nn.Module):
    """RMS norm: statistics in fp32, result in the input's dtype."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self._eps)


def _rotate(x: Tensor, cos_sin: Tensor) -> Tensor:
    """x: [b, heads, t, d], by halves; cos_sin: [t, d] fp32."""
    cos, sin = cos_sin.chunk(2, dim=-1)
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)


def _stacked(depths: tuple[Tensor, ...]) -> Tensor:
    """[k, b, heads, t, d] of depths 1 .. k."""
    return torch.stack(depths[1:]) if len(depths) > 1 else depths[0].new_zeros(0, *depths[0].shape)
