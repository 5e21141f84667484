"""Attention of training-time test: causal over true rows, and along each chain's own diagonal.

What a served head does (shared protocol): row j is (feature of position j, token j + 1) at RoPE position j. A chain
that starts from the true row s runs forwards k = 1, 2, ...: forward k is row s + k, with the hidden state of forward
k - 1 in place of a feature, token s + k + 1, RoPE position s + k. Its KV cache then holds the true rows 0 .. s and the
chain's own rows s + 1 .. s + k, which forwards 1 .. k wrote.

Training runs all chains of a conversation at once, indexed by their start s, not by their row. At depth k (0 for the
true rows) column s of q, k and v is row s + k, rotated to position s + k. So the query of column s at depth k sees

    K of depth 0 at columns 0 .. s            a causal mask, the same at every depth
    K of depth d at column s, d = 1 .. k      one key a depth: the diagonal, in terms of rows row s + d

and never a key of another chain. Keys stay as they were rotated, for a row's position does not depend on the depth
that asks. Both parts share one softmax: the causal part's output and log-sum-exp are merged with the diagonal's
scores, and backward hands the causal part the merged output and log-sum-exp, from which its usual formulas give its
exact share of the gradient (as ring attention does; Liu et al., arXiv 2310.01889).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

_CUDA_DTYPES = (torch.bfloat16, torch.float16)


def diagonal_attention(q: Tensor, true_kv: tuple[Tensor, Tensor], chain_kv: tuple[Tensor, Tensor]) -> Tensor:
    """Scaled by head_dim ** -0.5; differentiable.

    q: [b, heads, t, d] at some depth k. true_kv: K and V of depth 0, [b, heads, t, d] each. chain_kv: those of depths
    1 .. k, [k, b, heads, t, d] each. Returns [b, heads, t, d].
    """
    out: Tensor = _DiagonalAttention.apply(q, *true_kv, *chain_kv)
    return out


class _DiagonalAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, chain_k: Tensor, chain_v: Tensor) -> Tensor:
        causal = _causal(q, k, v)
        scores = _scores(q, chain_k)
        lse = torch.logsumexp(torch.cat([causal.lse[None], scores]), dim=0)
        merged = (causal.lse - lse).exp().unsqueeze(-1) * causal.out.float()
        merged += ((scores - lse).exp().unsqueeze(-1) * chain_v).sum(0)
        out = merged.to(q.dtype)
        ctx.save_for_backward(q, k, v, chain_k, chain_v, out, lse)
        ctx.rng = causal.rng
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        q, k, v, chain_k, chain_v, out, lse = ctx.saved_tensors
        grad = grads[0].contiguous()
        d_q, d_k, d_v = _causal_backward(grad, (q, k, v), out, lse, ctx.rng)
        wide = grad.float()
        share = (_scores(q, chain_k) - lse).exp().unsqueeze(-1)  # [k, b, heads, t, 1] of the softmax
        delta = (wide * out).sum(-1, keepdim=True)
        d_score = share * ((wide * chain_v).sum(-1, keepdim=True) - delta) * _scale(q)
        d_q = (d_q.float() + (d_score * chain_k).sum(0)).to(q.dtype)
        return d_q, d_k, d_v, (d_score * q).to(q.dtype), (share * wide).to(q.dtype)


class _Causal(NamedTuple):
    out: Tensor  # [b, heads, t, d]
    lse: Tensor  # [b, heads, t] fp32: log of the sum of exponents
    rng: tuple[Tensor, Tensor] | None  # of the flash kernel, which asks for it again


def _scale(q: Tensor) -> float:
    return float(q.shape[-1]) ** -0.5


def _scores(q: Tensor, chain_k: Tensor) -> Tensor:
    """fp32 [k, b, heads, t]."""
    return (q.float() * chain_k).sum(-1) * _scale(q)


def _has_flash(q: Tensor) -> bool:
    return q.device.type == "cuda" and q.dtype in _CUDA_DTYPES


def _causal(q: Tensor, k: Tensor, v: Tensor) -> _Causal:
    if _has_flash(q):
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        out, lse, _, _, _, _, seed, offset, _ = flash(q, k, v, 0.0, True, scale=_scale(q))
        return _Causal(out, lse, (seed, offset))
    scores = _masked_scores(q, k)
    lse = torch.logsumexp(scores, dim=-1)
    return _Causal(((scores - lse.unsqueeze(-1)).exp() @ v.float()).to(q.dtype), lse, None)


def _causal_backward(
    grad: Tensor, qkv: tuple[Tensor, Tensor, Tensor], out: Tensor, lse: Tensor, rng: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Of the causal part of a softmax whose whole output and log-sum-exp are given."""
    q, k, v = qkv
    if rng is not None:
        length = q.shape[2]
        flash = torch.ops.aten._scaled_dot_product_flash_attention_backward
        d_q, d_k, d_v = flash(grad, q, k, v, out, lse, None, None, length, length, 0.0, True, *rng, scale=_scale(q))
        return d_q, d_k, d_v
    share = (_masked_scores(q, k) - lse.unsqueeze(-1)).exp()
    wide = grad.float()
    delta = (wide * out).sum(-1, keepdim=True)
    d_score = share * (wide @ v.float().transpose(-1, -2) - delta) * _scale(q)
    d_k, d_v = d_score.transpose(-1, -2) @ q.float(), share.transpose(-1, -2) @ wide
    return (d_score @ k.float()).to(q.dtype), d_k.to(k.dtype), d_v.to(v.dtype)


def _masked_scores(q: Tensor, k: Tensor) -> Tensor:
    scores = q.float() @ k.float().transpose(-1, -2) * _scale(q)
    length = q.shape[2]
    return scores.masked_fill(torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1), float("-inf"))
