"""Rows of a matrix by index, gathered into a new one or scattered into a pool; tokens by the tree that drew them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


def gather_rows(table: Tensor, index: Tensor) -> Tensor:
    """table[index]: table [n, width], index [rows] int64 -> [rows, width]."""
    width = table.shape[1]
    assert table.stride(1) == 1 and index.dim() == 1 and index.is_contiguous()
    out = torch.empty((len(index), width), dtype=table.dtype, device=table.device)
    if out.numel():
        _gather_kernel[(len(index), triton.cdiv(width, _BLOCK))](
            table, index, out, width, table.stride(0), BLOCK=_BLOCK, num_warps=4
        )
    return out


def scatter_rows(pool: Tensor, slots: Tensor, rows: Tensor) -> None:
    """As ``Ops.scatter_rows``: MUTATES pool[slots] = rows, whose rows may lie apart."""
    num_rows, width = rows.shape
    assert pool.shape[1] == width and pool.dtype == rows.dtype and pool.stride(1) == rows.stride(1) == 1
    assert slots.shape == (num_rows,) and slots.is_contiguous()
    if rows.numel():
        _scatter_kernel[(num_rows, triton.cdiv(width, _BLOCK))](
            pool, slots, rows, width, pool.stride(0), rows.stride(0), BLOCK=_BLOCK, num_warps=4
        )


def fill_drawn(tokens: Tensor, drawn: Tensor) -> None:
    """As ``Ops.fill_drawn``."""
    assert tokens.is_contiguous() and drawn.is_contiguous() and tokens.device == drawn.device
    if len(tokens):
        _fill_kernel[(triton.cdiv(len(tokens), _BLOCK),)](tokens, drawn, len(tokens), BLOCK=_BLOCK, num_warps=4)


@triton.jit(do_not_specialize=["num_tokens"])
def _fill_kernel(tokens_ptr, drawn_ptr, num_tokens, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(tokens_ptr + at, mask=at < num_tokens, other=0)
    is_drawn = token < 0
    drawn = tl.load(drawn_ptr + (-1 - token), mask=is_drawn, other=0)
    tl.store(tokens_ptr + at, drawn.to(tl.int64), mask=is_drawn)


@triton.jit
def _gather_kernel(table_ptr, index_ptr, out_ptr, width, table_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    source = tl.load(index_ptr + row).to(tl.int64)
    tl.store(
        out_ptr + row * width + columns, tl.load(table_ptr + source * table_stride + columns, mask=mask), mask=mask
    )


@triton.jit
def _scatter_kernel(pool_ptr, slots_ptr, rows_ptr, width, pool_stride, rows_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    slot = tl.load(slots_ptr + row).to(tl.int64)
    tl.store(
        pool_ptr + slot * pool_stride + columns, tl.load(rows_ptr + row * rows_stride + columns, mask=mask), mask=mask
    )
