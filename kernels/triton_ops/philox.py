"""Philox4x32-10 and the Gumbel noise made of it, as ``Ops.gumbel`` defines it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 256


@triton.jit
def block_noise(seed, position, blocks, ROWS: tl.constexpr, COLS: tl.constexpr):
    """fp32 [ROWS, 4 * COLS]: the noise of the ids [4 * block, 4 * block + 4) of int32 blocks [ROWS, COLS], in order.

    seed: int64, the bit pattern; position: int32.
    """
    word0, word1, word2, word3 = tl.philox(seed, blocks, position, 0, 0)
    words = tl.join(tl.join(word0, word2), tl.join(word1, word3))
    return _to_gumbel(tl.reshape(words, [ROWS, 4 * COLS]))


@triton.jit
def _to_gumbel(words):
    uniform = ((words >> 9).to(tl.float32) + 0.5) * (2.0**-23)
    return -tl.log(-tl.log(uniform))


def gumbel_rows(seeds: Tensor, positions: Tensor, ids: Tensor) -> Tensor:
    """As ``Ops.gumbel_rows``: fp32 [n, m]. ids may be expanded."""
    num_rows, num_ids = ids.shape
    noise = torch.empty((num_rows, num_ids), dtype=torch.float32, device=ids.device)
    if noise.numel():
        grid = (num_rows, triton.cdiv(num_ids, _BLOCK))
        _gumbel_kernel[grid](
            noise, seeds, positions, ids, num_ids, *ids.stride(), seeds.stride(0), positions.stride(0), BLOCK=_BLOCK
        )
    return noise


@triton.jit(do_not_specialize=["num_ids"])
def _gumbel_kernel(
    noise, seeds, positions, ids, num_ids, row_stride, id_stride, seed_stride, position_stride, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < num_ids
    wanted = tl.load(ids + row * row_stride + column * id_stride, mask=inside, other=0)
    seed = tl.load(seeds + row * seed_stride)
    position = tl.load(positions + row * position_stride).to(tl.int32)
    word0, word1, word2, word3 = tl.philox(seed, (wanted >> 2).to(tl.int32), position, 0, 0)
    place = wanted & 3
    low = tl.where(place == 0, word0, word1)
    high = tl.where(place == 2, word2, word3)
    tl.store(noise + row * num_ids + column, _to_gumbel(tl.where(place < 2, low, high)), mask=inside)
