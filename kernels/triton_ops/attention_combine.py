"""Device code that adds up the splits of a tile, in their order: which program comes last changes no bit."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton_ops.overlap import await_previous


@triton.jit
def combine(
    out,
    counts,
    units,
    q_indptr,
    partial_out,
    partial_lse,
    GROUP: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    LANES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    COMBINE_LANES: tl.constexpr,
    COMBINE_SPLITS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """On attend's grid: the program of each split combines its share of the tile's lanes, over all splits."""
    await_previous(OVERLAPS)
    for unit in range(tl.program_id(1), tl.load(counts), tl.num_programs(1)):
        code = tl.load(units + unit * 4 + 2)
        split = code & 0xFFFF
        num_splits = code >> 16
        if num_splits > 1:
            request = tl.load(units + unit * 4)
            first = tl.load(units + unit * 4 + 1)
            partial = tl.load(units + unit * 4 + 3)
            q_start = tl.load(q_indptr + request)
            q_len = tl.load(q_indptr + request + 1) - q_start
            num_lanes = tl.minimum(TILE_ROWS, q_len - first) * GROUP
            share = tl.cdiv(num_lanes, num_splits)
            begin = split * share
            combine_lanes(
                partial_out,
                partial_lse,
                out,
                partial,
                num_splits,
                q_start + first,
                begin,
                tl.minimum(begin + share, num_lanes),
                GROUP,
                LANES,
                HEAD_DIM,
                BLOCK_D,
                COMBINE_LANES,
                COMBINE_SPLITS,
            )


@triton.jit
def combine_lanes(
    partial_out,
    partial_lse,
    out,
    partial,  # the tile's first
    num_splits,
    first_row,  # of the tile, in out
    begin,
    end,  # lanes [begin, end)
    GROUP: tl.constexpr,
    LANES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    COMBINE_LANES: tl.constexpr,  # at once
    COMBINE_SPLITS: tl.constexpr,  # at once
):
    head = tl.program_id(0)
    dim = tl.arange(0, BLOCK_D)
    for start in range(begin, end, COMBINE_LANES):
        lane = start + tl.arange(0, COMBINE_LANES)
        is_lane = lane < end
        top = tl.full([COMBINE_LANES], float("-inf"), tl.float32)
        total = tl.zeros([COMBINE_LANES], tl.float32)
        mixed = tl.zeros([COMBINE_LANES, BLOCK_D], tl.float32)
        for first_split in range(0, num_splits, COMBINE_SPLITS):
            split = first_split + tl.arange(0, COMBINE_SPLITS)
            is_part = (split < num_splits)[:, None] & is_lane[None, :]
            part = ((partial + split) * tl.num_programs(0) + head).to(tl.int64) * LANES
            at = part[:, None] + lane[None, :]
            # .cg: an L1 may hold what was there before the other programs wrote.
            lse = tl.load(partial_lse + at, mask=is_part, other=float("-inf"), cache_modifier=".cg")
            parts = tl.load(
                partial_out + at[:, :, None] * BLOCK_D + dim[None, None, :],
                mask=is_part[:, :, None],
                other=0.0,
                cache_modifier=".cg",
            )
            new_top = tl.maximum(top, tl.max(lse, 0))
            shift = tl.where(new_top == float("-inf"), 0.0, new_top)
            weights = tl.exp2(lse - shift[None, :])
            decay = tl.exp2(top - shift)
            total = total * decay + tl.sum(weights, 0)
            mixed = mixed * decay[:, None] + tl.sum(parts * weights[:, :, None], 0)
            top = new_top
        mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
        row = first_row + lane // GROUP
        q_head = head * GROUP + lane % GROUP
        out_at = (row * (tl.num_programs(0) * GROUP) + q_head) * HEAD_DIM
        is_out = is_lane[:, None] & (dim < HEAD_DIM)[None, :]
        tl.store(out + out_at[:, None] + dim[None, :], mixed.to(out.dtype.element_ty), mask=is_out)
