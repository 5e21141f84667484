"""Rows of all pools of a cache moved in one launch, as compaction after acceptance does."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 32  # pairs whose values a program holds at once
_BLOCK = 128  # words of a row that a program moves
_WORDS = {8: tl.int64, 4: tl.int32, 2: tl.int16, 1: tl.int8}


@dataclass(frozen=True, slots=True)
class PoolTable:
    """Where the pools of a cache lie, on their device. Valid as long as the pools."""

    addresses: Tensor  # [pools] int64
    row_words: Tensor  # [pools] int32, words of one row
    max_row_words: int
    word: tl.dtype

    @classmethod
    def of(cls, pools: list[Tensor]) -> PoolTable:
        """pools: contiguous, [slots, ...] each. Waits for the device once; not to be called inside a capture."""
        device, num_slots = pools[0].device, len(pools[0])
        assert all(p.is_contiguous() and len(p) == num_slots and p.device == device for p in pools)
        addresses = [p.data_ptr() for p in pools]
        row_bytes = [p.nbytes // num_slots for p in pools]
        size = next(size for size in _WORDS if all(n % size == 0 for n in (*addresses, *row_bytes)))
        return cls(
            addresses=torch.tensor(addresses, dtype=torch.int64, device=device),
            row_words=torch.tensor([n // size for n in row_bytes], dtype=torch.int32, device=device),
            max_row_words=max(row_bytes) // size,
            word=_WORDS[size],
        )


def move_rows(table: PoolTable, src: Tensor, dst: Tensor) -> None:
    """As ``Ops.move_rows``: MUTATES the pools. src, dst: [n] int64.

    A program moves some columns of one pool for all pairs, tile by tile in their order; within a tile all reads come
    before any write.
    """
    assert src.shape == dst.shape and src.is_contiguous() and dst.is_contiguous()
    if len(src):
        grid = (len(table.addresses), triton.cdiv(table.max_row_words, _BLOCK))
        _move_kernel[grid](
            table.addresses,
            table.row_words,
            src,
            dst,
            len(src),
            WORD=table.word,
            TILE=_TILE,
            BLOCK=_BLOCK,
            num_warps=4,
        )


@triton.jit(do_not_specialize=["num_pairs"])
def _move_kernel(
    addresses_ptr,
    row_words_ptr,
    src_ptr,
    dst_ptr,
    num_pairs,
    WORD: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    pool = tl.program_id(0)
    row_words = tl.load(row_words_ptr + pool)
    pool_ptr = tl.load(addresses_ptr + pool).to(tl.pointer_type(WORD))
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if tl.program_id(1) * BLOCK < row_words:
        for start in tl.range(0, num_pairs, TILE, num_stages=1):
            pairs = start + tl.arange(0, TILE)
            src = tl.load(src_ptr + pairs, mask=pairs < num_pairs, other=0)
            dst = tl.load(dst_ptr + pairs, mask=pairs < num_pairs, other=0)
            mask = (src != dst)[:, None] & (columns < row_words)[None, :]
            words = tl.load(pool_ptr + src[:, None] * row_words + columns[None, :], mask=mask)
            tl.debug_barrier()
            tl.store(pool_ptr + dst[:, None] * row_words + columns[None, :], words, mask=mask)
