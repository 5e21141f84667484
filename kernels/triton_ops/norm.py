"""RMS norms, with the residual's addition and the capture of a feature layer in the same pass.

Sums run in fp32; the result is rounded where the reference rounds: the sum, the normed value, then its product.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_ops.overlap import await_previous

_VALUES_PER_WARP = 512  # 16 a thread


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, overlap: bool) -> Tensor:
    """As ``Ops.rms_norm``: x [rows, width] or [rows, heads, width], whose last dimension lies together."""
    *_, width = x.shape
    assert x.dim() in (2, 3) and x.stride(-1) == 1 and weight.shape == (width,)
    num_heads = x.shape[1] if x.dim() == 3 else 1
    head_stride = x.stride(1) if x.dim() == 3 else 0
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(width)
    if x.numel():
        _rms_norm_kernel[(x.shape[0] * num_heads,)](
            x,
            weight,
            out,
            num_heads,
            width,
            x.stride(0),
            head_stride,
            eps,
            BLOCK=block,
            OVERLAPS=overlap,
            num_warps=_num_warps(block),
            launch_pdl=overlap,
        )
    return out


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, capture: Tensor | None, overlap: bool
) -> Tensor:
    """As ``Ops.add_rms_norm``: MUTATES residual, and capture where it is given."""
    rows, width = x.shape
    assert residual.shape == x.shape and residual.is_contiguous() and x.stride(1) == 1 and weight.shape == (width,)
    assert capture is None or (capture.shape == x.shape and capture.stride(1) == 1)
    out = torch.empty_like(residual)
    block = triton.next_power_of_2(width)
    if rows:
        _add_rms_norm_kernel[(rows,)](
            x,
            residual,
            weight,
            out,
            out if capture is None else capture,
            width,
            x.stride(0),
            0 if capture is None else capture.stride(0),
            eps,
            HAS_CAPTURE=capture is not None,
            BLOCK=block,
            OVERLAPS=overlap,
            num_warps=_num_warps(block),
            launch_pdl=overlap,
        )
    return out


@triton.jit
def _rms_norm_kernel(
    x_ptr,
    weight_ptr,
    out_ptr,
    num_heads,
    width,
    row_stride,
    head_stride,
    eps,
    BLOCK: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < width
    start = program // num_heads * row_stride + program % num_heads * head_stride
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0)
    await_previous(OVERLAPS)
    x = tl.load(x_ptr + start + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + program * width + columns, _normed(x, weight, width, eps), mask=mask)


@triton.jit
def _add_rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    capture_ptr,
    width,
    x_stride,
    capture_stride,
    eps,
    HAS_CAPTURE: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < width
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0)
    await_previous(OVERLAPS)
    x = tl.load(x_ptr + row * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + row * width + columns, mask=mask, other=0.0).to(tl.float32)
    total = (residual + x).to(residual_ptr.dtype.element_ty)
    tl.store(residual_ptr + row * width + columns, total, mask=mask)
    if HAS_CAPTURE:
        tl.store(capture_ptr + row * capture_stride + columns, total, mask=mask)
    tl.store(out_ptr + row * width + columns, _normed(total.to(tl.float32), weight, width, eps), mask=mask)


@triton.jit
def _normed(x, weight, width, eps):
    """x fp32 [BLOCK], 0 past the width -> [BLOCK] of weight's dtype."""
    scale = 1.0 / tl.sqrt_rn(tl.sum(x * x, axis=0) / width + eps)
    rounded = (x * scale).to(weight.dtype)
    return (rounded.to(tl.float32) * weight.to(tl.float32)).to(weight.dtype)


def _num_warps(block: int) -> int:
    return min(max(block // _VALUES_PER_WARP, 1), 16)
