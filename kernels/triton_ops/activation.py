"""SiLU of the gate, times up."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_ops.overlap import await_previous

_BLOCK = 512


def silu_mul(gate_up: Tensor, *, overlap: bool) -> Tensor:
    """As ``Ops.silu_mul``. The gate's activation is rounded before the product, as in the reference."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    assert gate_up.stride(1) == 1 and gate_up.shape[1] % 2 == 0
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        _silu_mul_kernel[(rows, triton.cdiv(width, _BLOCK))](
            gate_up,
            out,
            width,
            gate_up.stride(0),
            BLOCK=_BLOCK,
            OVERLAPS=overlap,
            num_warps=2,
            launch_pdl=overlap,
        )
    return out


@triton.jit
def _silu_mul_kernel(gate_up_ptr, out_ptr, width, row_stride, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    gate_ptr = gate_up_ptr + row * row_stride + columns
    await_previous(OVERLAPS)
    gate = tl.load(gate_ptr, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_ptr + width, mask=mask, other=0.0)
    activated = (gate / (1.0 + tl.exp(-gate))).to(up.dtype)
    tl.store(out_ptr + row * width + columns, (activated.to(tl.float32) * up.to(tl.float32)).to(up.dtype), mask=mask)
