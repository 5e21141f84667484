"""Device code of attention: paged, ragged, split over the KV (Flash-Decoding, Dao et al. 2023) and online softmax.

Softmax runs in base 2: scale is head_dim ** -0.5 * log2(e).
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton_ops.attention_combine import combine_lanes
from kernels.triton_ops.overlap import await_previous


@triton.jit
def attend(
    q,  # [rows, heads, head_dim]
    k_cache,  # [slots, kv_heads, head_dim]
    v_cache,
    out,  # [rows, heads, head_dim], contiguous
    counts,  # int32: units, rows of the batch
    units,  # [units, 4] int32, see attention_units
    q_indptr,
    prefix_len,
    local_len,
    is_causal,  # int32
    ancestors,  # int64
    page_indptr,
    page_ids,
    partial_out,  # [partials, kv_heads, LANES, BLOCK_D] fp32: of one split, normalised
    partial_lse,  # [partials, kv_heads, LANES] fp32: log2 of its sum of exponents, -inf where it saw nothing
    arrivals,  # [partials, kv_heads] int32, at a tile's first partial; 0 between launches
    num_rows,  # of out: those past the batch's become 0
    scale,
    q_row_stride,
    q_head_stride,
    slot_stride,  # of both caches
    head_stride,
    GROUP: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK_KV: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    INDEX: tl.constexpr,  # the integer type that counts a cache's values
    FIXED_SPLIT: tl.constexpr,  # positions of a split, 0: as many as the tile's splits share evenly
    FUSED_COMBINE: tl.constexpr,
    COMBINE_LANES: tl.constexpr,
    COMBINE_SPLITS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    head = tl.program_id(0)
    num_heads = tl.num_programs(0) * GROUP
    k_head = k_cache + head * head_stride
    v_head = v_cache + head * head_stride
    num_units = tl.load(counts)
    for unit in range(tl.program_id(1), num_units, tl.num_programs(1)):
        request = tl.load(units + unit * 4)
        first = tl.load(units + unit * 4 + 1)
        code = tl.load(units + unit * 4 + 2)
        partial = tl.load(units + unit * 4 + 3)
        split = code & 0xFFFF
        num_splits = code >> 16
        q_start = tl.load(q_indptr + request)
        q_len = tl.load(q_indptr + request + 1) - q_start
        prefix = tl.load(prefix_len + request)
        local = tl.load(local_len + request)
        causal = tl.load(is_causal + request)
        pages = page_ids + tl.load(page_indptr + request)

        lane = tl.arange(0, LANES)
        row = first + lane // GROUP
        q_head = head * GROUP + lane % GROUP
        is_lane = (lane < TILE_ROWS * GROUP) & (row < q_len)
        dim = tl.arange(0, BLOCK_D)
        path = tl.load(ancestors + q_start + row, mask=is_lane, other=0)

        # Every lane sees [0, dense). A causal lane sees [0, seen); a tree's also its path in the local part.
        own = prefix + local - q_len + row
        dense = tl.where(causal != 0, prefix + local - q_len + first + 1, prefix)
        seen = tl.where(causal != 0, own + 1, prefix)
        path_low = tl.where(causal != 0, 0, path.to(tl.int32))
        path_high = tl.where(causal != 0, 0, (path >> 32).to(tl.int32))
        stop = prefix + local - tl.where(causal != 0, tl.maximum(q_len - first - TILE_ROWS, 0), 0)

        even_len = tl.cdiv(stop, num_splits)
        split_len = tl.where(num_splits > 1, FIXED_SPLIT, stop) if FIXED_SPLIT else even_len
        num_blocks = tl.cdiv(split_len, BLOCK_KV)
        begin = split * num_blocks
        end = tl.minimum(begin + num_blocks, tl.cdiv(stop, BLOCK_KV))

        # A block's page ids are loaded one block ahead: their wait would else come before that of its keys.
        column = tl.arange(0, BLOCK_KV)
        page = _pages(pages, begin * BLOCK_KV + column, stop, PAGE_SIZE)

        # All that was read so far is older than the kernel before this one, which wrote q and the newest KV.
        await_previous(OVERLAPS)
        is_q = is_lane[:, None] & (dim < HEAD_DIM)[None, :]
        q_at = (q_start + row) * q_row_stride + q_head * q_head_stride
        queries = tl.load(q + q_at[:, None] + dim[None, :], mask=is_q, other=0.0)
        top = tl.full([LANES], float("-inf"), tl.float32)
        total = tl.zeros([LANES], tl.float32)
        mixed = tl.zeros([LANES, BLOCK_D], tl.float32)
        for block in range(begin, end):
            pos = block * BLOCK_KV + column
            is_kv = (pos < stop)[:, None] & (dim < HEAD_DIM)[None, :]
            kv_at = (page.to(INDEX) * PAGE_SIZE + (pos.to(tl.uint32) % PAGE_SIZE).to(INDEX)) * slot_stride
            page = _pages(pages, pos + BLOCK_KV, stop, PAGE_SIZE)
            keys = tl.load(k_head + kv_at[:, None] + dim[None, :], mask=is_kv, other=0.0)
            values = tl.load(v_head + kv_at[:, None] + dim[None, :], mask=is_kv, other=0.0)
            scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
            if (block + 1) * BLOCK_KV > dense:
                bit = pos - prefix
                word = tl.where((bit < 32)[None, :], path_low[:, None], path_high[:, None])
                in_path = (bit >= 0)[None, :] & (((word >> (bit & 31)[None, :]) & 1) != 0)
                sees = (pos < stop)[None, :] & ((pos[None, :] < seen[:, None]) | in_path)
                scores = tl.where(sees, scores, float("-inf"))
            new_top = tl.maximum(top, tl.max(scores, 1))
            shift = tl.where(new_top == float("-inf"), 0.0, new_top)
            weights = tl.exp2(scores - shift[:, None])
            decay = tl.exp2(top - shift)
            total = total * decay + tl.sum(weights, 1)
            mixed = mixed * decay[:, None]
            mixed = tl.dot(weights.to(values.dtype), values, mixed, input_precision="ieee")
            top = new_top

        saw_none = total == 0.0
        total = tl.where(saw_none, 1.0, total)
        mixed = mixed / total[:, None]
        if num_splits == 1:
            out_at = ((q_start + row) * num_heads + q_head) * HEAD_DIM
            tl.store(out + out_at[:, None] + dim[None, :], mixed.to(out.dtype.element_ty), mask=is_q)
        else:
            lse = tl.where(saw_none, float("-inf"), top + tl.log2(total))
            lane_at = ((partial + split) * tl.num_programs(0) + head).to(tl.int64) * LANES + lane
            tl.store(partial_lse + lane_at, lse, mask=is_lane)
            tl.store(partial_out + lane_at[:, None] * BLOCK_D + dim[None, :], mixed, mask=is_lane[:, None])
            if FUSED_COMBINE:
                # The barrier brings all threads' stores before the atomic, whose release and acquire order them
                # against those of the other splits' programs.
                tl.debug_barrier()
                arrived = tl.atomic_add(arrivals + partial * tl.num_programs(0) + head, 1, sem="acq_rel")
                if arrived == num_splits - 1:
                    tl.store(arrivals + partial * tl.num_programs(0) + head, 0)
                    num_lanes = tl.minimum(TILE_ROWS, q_len - first) * GROUP
                    combine_lanes(
                        partial_out,
                        partial_lse,
                        out,
                        partial,
                        num_splits,
                        q_start + first,
                        0,
                        num_lanes,
                        GROUP,
                        LANES,
                        HEAD_DIM,
                        BLOCK_D,
                        COMBINE_LANES,
                        COMBINE_SPLITS,
                    )

    await_previous(OVERLAPS)
    fold = tl.arange(0, LANES)
    dim = tl.arange(0, BLOCK_D)
    is_out = (fold < GROUP)[:, None] & (dim < HEAD_DIM)[None, :]
    for row in range(tl.load(counts + 1) + tl.program_id(1), num_rows, tl.num_programs(1)):
        at = (row * num_heads + head * GROUP + fold) * HEAD_DIM
        tl.store(out + at[:, None] + dim[None, :], tl.zeros([LANES, BLOCK_D], out.dtype.element_ty), mask=is_out)


@triton.jit
def _pages(pages, pos, stop, PAGE_SIZE: tl.constexpr):
    """Of positions, 0 from stop on."""
    return tl.load(pages + pos.to(tl.uint32) // PAGE_SIZE, mask=pos < stop, other=0)
