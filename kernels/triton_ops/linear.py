"""Matrix products of few rows, which take as long as their weights take to stream from memory.

A program multiplies a block of the weight's rows with all rows of x. So that all multiprocessors stream, and for as
long as each other, the width is split among programs where the weight has few rows; the last one of a block to finish
adds their sums up, in the order of the width, so that a result never depends on timing. A weight in 8 bits is widened
in registers to x's dtype; its rows' scales meet the sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_ops.overlap import await_previous, prefetch_lines
from kernels.triton_ops.rounded_weight import RoundedWeight, byte_values

MAX_ROWS = 128
SKINNY_ROWS = 32  # up to here it is faster than cuBLAS: see bench.gpu_linear and bench.gpu_layers
ROUNDED_ROWS = 64  # up to here it is faster, with a rounded weight, than cuBLAS without: see bench.gpu_linear
_MAX_TILES = 1 << 14  # blocks whose width is split
_LEAST_WIDTH = 256  # columns of a split
_PREFETCHED_LINES = 8  # 128 bytes, 64 columns each, of a row of a program's weights
_HALVES = (torch.bfloat16, torch.float16)
_WIDTH_STEP = 16


@dataclass(frozen=True, slots=True)
class SkinnyTile:
    """How one program streams the weight: block_k columns of block_out rows at a time, num_stages of them in flight.

    A column is a value, or the two values of a rounded weight's int16.
    """

    block_out: int
    block_k: int
    num_stages: int
    num_warps: int = 4


@dataclass(frozen=True, slots=True)
class SkinnyPlan:
    """A tile, and the width [columns] that each program takes: a multiple of the tile's block_k."""

    tile: SkinnyTile
    split_width: int


class SkinnyLinear:
    """x [rows, width] @ weight [out, width].T + bias, for up to MAX_ROWS rows of bf16 or fp16, summed in fp32.

    The weight has x's dtype, or is rounded.

    Owns the counters by which programs find out who is last, so that one object serves one stream.
    """

    def __init__(self, device: torch.device, *, overlap: bool = False) -> None:
        """overlap: see ``kernels.triton_ops.overlap``; a program's first weights are fetched while it waits."""
        self._overlap = overlap
        self._counters = torch.zeros(_MAX_TILES, dtype=torch.int32, device=device)
        on_cuda = device.type == "cuda"
        self._num_sms = torch.cuda.get_device_properties(device).multi_processor_count if on_cuda else 1
        self._is_compiled = not triton.knobs.runtime.interpret

    @staticmethod
    def can_round(weight: Tensor) -> bool:
        """Whether it computes products with the weight [out, in] rounded."""
        return weight.dtype in _HALVES and weight.shape[1] % _WIDTH_STEP == 0

    @staticmethod
    def fits(x: Tensor, weight: Tensor) -> bool:
        """Whether it computes this product."""
        is_wide = x.shape[1] % _WIDTH_STEP == 0
        return 0 < len(x) <= MAX_ROWS and x.dtype in _HALVES and is_wide and weight.is_contiguous()

    def linear(
        self,
        x: Tensor,
        weight: Tensor | RoundedWeight,
        bias: Tensor | None = None,
        *,
        out_dtype: torch.dtype | None = None,
        plan: SkinnyPlan | None = None,
    ) -> Tensor:
        """[rows, out] of out_dtype, or x's. plan: None takes ``plan_skinny``'s."""
        is_rounded = isinstance(weight, RoundedWeight)
        columns, scales = (weight.pairs, weight.scales) if isinstance(weight, RoundedWeight) else (weight, None)
        rows = len(x)
        num_out, width = columns.shape
        assert self.fits(x, columns) and x.stride(1) == 1 and x.shape[1] == (2 * width if is_rounded else width)
        plan = plan or plan_skinny(rows, num_out, width, num_sms=self._num_sms, is_rounded=is_rounded)
        tile = plan.tile
        block_rows = max(8 if is_rounded else 16, triton.next_power_of_2(rows))
        num_tiles, num_splits = triton.cdiv(num_out, tile.block_out), triton.cdiv(width, plan.split_width)
        assert num_splits == 1 or num_tiles <= _MAX_TILES
        out = torch.empty((rows, num_out), dtype=out_dtype or x.dtype, device=x.device)
        partials = out
        if num_splits > 1:
            shape = (num_tiles * num_splits, tile.block_out * block_rows)
            partials = torch.empty(shape, dtype=torch.float32, device=x.device)
        _skinny_kernel[(num_tiles, num_splits)](
            x,
            columns,
            out if scales is None else scales,
            out if bias is None else bias,
            out,
            partials,
            self._counters,
            rows,
            num_out,
            width,
            x.stride(0),
            plan.split_width,
            num_splits,
            IS_ROUNDED=is_rounded,
            PACKED=self._is_compiled,
            HAS_BIAS=bias is not None,
            IS_SPLIT=num_splits > 1,
            EVEN_WIDTH=width % tile.block_k == 0,
            BLOCK_ROWS=block_rows,
            BLOCK_OUT=tile.block_out,
            BLOCK_K=tile.block_k,
            PREFETCHED=_PREFETCHED_LINES,
            OVERLAPS=self._overlap,
            num_stages=tile.num_stages,
            num_warps=tile.num_warps,
            launch_pdl=self._overlap,
        )
        return out


@lru_cache(maxsize=1024)
def plan_skinny(rows: int, num_out: int, width: int, *, num_sms: int, is_rounded: bool = False) -> SkinnyPlan:
    """The tile by the number of rows, and no more programs than multiprocessors where the width is split: what a split
    writes, reads and waits for costs more than a second wave of programs does.

    width: in columns.
    """
    tile = _tile(rows, is_rounded=is_rounded)
    num_tiles = triton.cdiv(num_out, tile.block_out)
    num_splits = max(1, min(num_sms // num_tiles, width // _LEAST_WIDTH))
    return SkinnyPlan(tile, triton.cdiv(triton.cdiv(width, num_splits), tile.block_k) * tile.block_k)


def _tile(rows: int, *, is_rounded: bool) -> SkinnyTile:
    """On an H200 the fastest of ``python -m bench.gpu_linear --sweep``; with a rounded weight that of a draft's rounds,
    ``python -m bench.gpu_draft``: 1.28 ms at 16 sessions of (5,4,16), 1.42 with the sweep's."""
    if is_rounded:
        return SkinnyTile(64, 128, 5) if rows <= 16 else SkinnyTile(128, 64, 5, num_warps=8)
    if rows <= 32:
        return SkinnyTile(64, 128, 6)
    return SkinnyTile(64, 64, 8) if rows <= 64 else SkinnyTile(128, 64, 5, num_warps=8)


@triton.jit(do_not_specialize=["rows", "num_splits"])
def _skinny_kernel(
    x_ptr,
    weight_ptr,
    scales_ptr,
    bias_ptr,
    out_ptr,
    partials_ptr,
    counters_ptr,
    rows,
    num_out,
    width,
    x_stride,
    split_width,
    num_splits,
    IS_ROUNDED: tl.constexpr,
    PACKED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    EVEN_WIDTH: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PREFETCHED: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    tile = tl.program_id(0)
    split = tl.program_id(1)
    outs = tile * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    row = tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, BLOCK_K)
    # Past the last output the last weight is read again, so that whole blocks need no mask; nothing of it is stored.
    weight_row = weight_ptr + tl.minimum(outs, num_out - 1).to(tl.int64)[:, None] * width
    weight_at = weight_row + column[None, :]
    x_at = x_ptr + row[:, None] * x_stride + column[None, :]
    is_row = (row < rows)[:, None]
    total = tl.zeros((BLOCK_OUT, BLOCK_ROWS), tl.float32)
    start = split * split_width
    if OVERLAPS:
        line = start + 64 * tl.arange(0, PREFETCHED)
        prefetch_lines(weight_row + tl.minimum(line, width - 1)[None, :])
    await_previous(OVERLAPS)
    for k in range(start, tl.minimum(start + split_width, width), BLOCK_K):
        if EVEN_WIDTH:
            weight = tl.load(weight_at + k)
            is_x = is_row
        else:
            is_column = (k + column < width)[None, :]
            weight = tl.load(weight_at + k, mask=is_column, other=0)
            is_x = is_row & is_column
        x = tl.load(x_at + k, mask=is_x, other=0.0)
        if IS_ROUNDED:
            high_x = tl.load(x_at + width + k, mask=is_x, other=0.0)
            total = tl.dot(byte_values(weight, False, x.dtype, PACKED), tl.trans(x), total)
            total = tl.dot(byte_values(weight, True, x.dtype, PACKED), tl.trans(high_x), total)
        else:
            total = tl.dot(weight, tl.trans(x), total)
    if IS_ROUNDED:
        total *= tl.load(scales_ptr + tl.minimum(outs, num_out - 1))[:, None]
    if IS_SPLIT:
        lane = tl.arange(0, BLOCK_OUT)[:, None] * BLOCK_ROWS + row[None, :]
        tile_ptr = partials_ptr + tile * num_splits * (BLOCK_OUT * BLOCK_ROWS)
        tl.store(tile_ptr + split * (BLOCK_OUT * BLOCK_ROWS) + lane, total)
        tl.debug_barrier()
        num_before = tl.atomic_add(counters_ptr + tile, 1, sem="acq_rel", scope="gpu")
        if num_before == num_splits - 1:
            total = tl.zeros((BLOCK_OUT, BLOCK_ROWS), tl.float32)
            for part in range(num_splits):
                total += tl.load(tile_ptr + part * (BLOCK_OUT * BLOCK_ROWS) + lane, cache_modifier=".cg")
            tl.store(counters_ptr + tile, 0)
            _store(total, bias_ptr, out_ptr, outs, row, rows, num_out, HAS_BIAS)
    else:
        _store(total, bias_ptr, out_ptr, outs, row, rows, num_out, HAS_BIAS)


@triton.jit
def _store(total, bias_ptr, out_ptr, outs, row, rows, num_out, HAS_BIAS: tl.constexpr):
    """total [BLOCK_OUT, BLOCK_ROWS] fp32 -> out [rows, num_out]."""
    total = tl.trans(total)
    if HAS_BIAS:
        total += tl.load(bias_ptr + outs, mask=outs < num_out, other=0.0).to(tl.float32)[None, :]
    at = out_ptr + row.to(tl.int64)[:, None] * num_out + outs[None, :]
    mask = (row < rows)[:, None] & (outs < num_out)[None, :]
    tl.store(at, total.to(out_ptr.dtype.element_ty), mask=mask)
