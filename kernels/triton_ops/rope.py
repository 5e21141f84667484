"""Head norms, rotary positions and the append to the KV cache in one launch."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from kernels.ops import HeadNorms
from kernels.triton_ops.overlap import await_previous

_TILE = 512  # values of one program: a few heads


class AppendTarget(NamedTuple):
    """Where a step's keys and values go."""

    slots: Tensor  # [rows] int64
    k_cache: Tensor  # [slots, kv_heads, head_dim], contiguous
    v_cache: Tensor


def rotate(q: Tensor, k: Tensor, cos_sin: Tensor, *, overlap: bool) -> None:
    """As ``Ops.rope``: MUTATES q and k. The values of a head lie together; rows and heads may be apart."""
    _launch((q, k, k), cos_sin, None, norms=None, overlap=overlap)


def rotate_append(
    qkv: tuple[Tensor, Tensor, Tensor],
    cos_sin: Tensor,
    target: AppendTarget,
    *,
    norms: HeadNorms | None,
    overlap: bool,
) -> None:
    """As ``Ops.rope_append``: MUTATES q and the caches at the slots; k stays as it is.

    qkv: [rows, heads or kv_heads, d]; the values of a head lie together, rows and heads may be apart.
    """
    _launch(qkv, cos_sin, target, norms=norms, overlap=overlap)


def _launch(
    qkv: tuple[Tensor, Tensor, Tensor],
    cos_sin: Tensor,
    target: AppendTarget | None,
    *,
    norms: HeadNorms | None,
    overlap: bool,
) -> None:
    q, k, v = qkv
    rows, num_heads, head_dim = q.shape
    num_kv_heads = k.shape[1]
    assert all(x.stride(2) == 1 and x.shape[::2] == (rows, head_dim) for x in qkv) and head_dim % 2 == 0
    assert cos_sin.shape == (rows, head_dim) and cos_sin.is_contiguous()
    slots, k_cache, v_cache = (cos_sin, k, v) if target is None else target
    if target is not None:
        assert slots.shape == (rows,) and slots.is_contiguous()
        assert all(c.shape[1:] == k.shape[1:] and c.is_contiguous() for c in (k_cache, v_cache))
    if rows == 0:
        return
    half = triton.next_power_of_2(head_dim // 2)
    block_heads = max(_TILE // (2 * half), 1)
    grid = (rows, triton.cdiv(num_heads, block_heads) + triton.cdiv(num_kv_heads, block_heads))
    _rotate_append_kernel[grid](
        q,
        k,
        v,
        cos_sin,
        slots,
        k_cache,
        v_cache,
        q if norms is None else norms.q,
        k if norms is None else norms.k,
        *(q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1)),
        0.0 if norms is None else norms.eps,
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HALF=head_dim // 2,
        BLOCK_HEADS=block_heads,
        BLOCK_HALF=half,
        HAS_NORMS=norms is not None,
        APPENDS=target is not None,
        OVERLAPS=overlap,
        num_warps=2,
        launch_pdl=overlap,
    )


@triton.jit
def _rotate_append_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    cos_sin_ptr,
    slots_ptr,
    k_cache_ptr,
    v_cache_ptr,
    q_norm_ptr,
    k_norm_ptr,
    q_row,
    q_head,
    k_row,
    k_head,
    v_row,
    v_head,
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    HAS_NORMS: tl.constexpr,
    APPENDS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """Axis 1 of the grid: blocks of query heads, then blocks of KV heads."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    num_q_blocks: tl.constexpr = (NUM_HEADS + BLOCK_HEADS - 1) // BLOCK_HEADS
    pairs = tl.arange(0, BLOCK_HALF)
    is_pair = pairs < HALF
    await_previous(OVERLAPS)
    cos = tl.load(cos_sin_ptr + row * (2 * HALF) + pairs, mask=is_pair, other=0.0)[None, :]
    sin = tl.load(cos_sin_ptr + row * (2 * HALF) + HALF + pairs, mask=is_pair, other=0.0)[None, :]
    if block < num_q_blocks:
        heads = block * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
        mask = (heads < NUM_HEADS)[:, None] & is_pair[None, :]
        at = q_ptr + row * q_row + heads[:, None] * q_head + pairs[None, :]
        low, high = _rotated(at, mask, cos, sin, pairs, q_norm_ptr, eps, HALF, HAS_NORMS)
        tl.store(at, low, mask=mask)
        tl.store(at + HALF, high, mask=mask)
    else:
        heads = (block - num_q_blocks) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
        mask = (heads < NUM_KV_HEADS)[:, None] & is_pair[None, :]
        at = k_ptr + row * k_row + heads[:, None] * k_head + pairs[None, :]
        low, high = _rotated(at, mask, cos, sin, pairs, k_norm_ptr, eps, HALF, HAS_NORMS)
        if APPENDS:
            slot = tl.load(slots_ptr + row).to(tl.int64)
            to = slot * (2 * HALF * NUM_KV_HEADS) + heads[:, None] * (2 * HALF) + pairs[None, :]
            tl.store(k_cache_ptr + to, low, mask=mask)
            tl.store(k_cache_ptr + to + HALF, high, mask=mask)
            v_at = v_ptr + row * v_row + heads[:, None] * v_head + pairs[None, :]
            tl.store(v_cache_ptr + to, tl.load(v_at, mask=mask), mask=mask)
            tl.store(v_cache_ptr + to + HALF, tl.load(v_at + HALF, mask=mask), mask=mask)
        else:
            tl.store(at, low, mask=mask)
            tl.store(at + HALF, high, mask=mask)


@triton.jit
def _rotated(at, mask, cos, sin, pairs, norm_ptr, eps, HALF: tl.constexpr, HAS_NORMS: tl.constexpr):
    """The two halves [BLOCK_HEADS, BLOCK_HALF] of the heads that lie at ``at``, normed and rotated, in their dtype."""
    dtype: tl.constexpr = at.dtype.element_ty
    low = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(at + HALF, mask=mask, other=0.0).to(tl.float32)
    if HAS_NORMS:
        scale = 1.0 / tl.sqrt_rn(tl.sum(low * low + high * high, axis=1) / (2 * HALF) + eps)
        low_weight = tl.load(norm_ptr + pairs, mask=pairs < HALF, other=0.0).to(tl.float32)[None, :]
        high_weight = tl.load(norm_ptr + HALF + pairs, mask=pairs < HALF, other=0.0).to(tl.float32)[None, :]
        low = ((low * scale[:, None]).to(dtype).to(tl.float32) * low_weight).to(dtype).to(tl.float32)
        high = ((high * scale[:, None]).to(dtype).to(tl.float32) * high_weight).to(dtype).to(tl.float32)
    return (low * cos - high * sin).to(dtype), (high * cos + low * sin).to(dtype)
