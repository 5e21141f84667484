"""Programmatic dependent launch (CUDA, compute capability 9.0): a kernel starts while the one before it ends.

Such a kernel may read weights at once, and waits before it touches what other kernels write or read. That order
holds along a chain, for no kernel ends before it has waited.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


def can_overlap(device: torch.device) -> bool:
    """Whether kernels that call ``await_previous`` may be launched with launch_pdl."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@triton.jit
def await_previous(OVERLAPS: tl.constexpr):
    """Waits until the kernels before this one have ended, then lets the next one start."""
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def prefetch_lines(line_ptr):
    """Fetches the lines of memory that the pointers, a tensor, lie in to the L2 cache. Nobody waits for it."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;",
        "=r,l",
        [line_ptr.to(tl.int64, bitcast=True)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
