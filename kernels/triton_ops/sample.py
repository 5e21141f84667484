"""The passes over all logits: the largest of each part of a row, then the best by score plus noise."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton_ops.philox import block_noise
from kernels.triton_ops.tiles import (
    NO_TOKEN,
    PART,
    SUB,
    best_of,
    filters_of,
    logit_tile,
    mass_of,
    noise_blocks,
    request_of,
    to_scores,
    token_ids,
)


@triton.jit(do_not_specialize=["num_requests", "num_nodes"])
def peaks_kernel(
    logits,
    row_stride,
    bitmask,
    mask_stride,
    array,
    num_requests,
    num_nodes,
    sub_peaks,  # [nodes, SUBS] fp32
    peaks,  # [nodes, PARTS] fp32
    peak_ids,  # [nodes, PARTS] int32
    VOCAB: tl.constexpr,
    SUBS: tl.constexpr,
    PARTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_MASK: tl.constexpr,
):
    """A program a (node, part). MUTATES its entries of the last three."""
    node = tl.program_id(0)
    part = tl.program_id(1)
    subs = part * PART + tl.arange(0, PART)
    ids = token_ids(subs)
    source = (logits, row_stride, bitmask, mask_stride)
    tile = logit_tile(source, (array, num_requests, num_nodes), node, ids, VOCAB, HAS_BIAS, HAS_MASK)
    tl.store(sub_peaks + node * SUBS + subs, tl.max(tile, axis=1))
    best, best_id = best_of(tile, ids)
    tl.store(peaks + node * PARTS + part, best)
    tl.store(peak_ids + node * PARTS + part, best_id)


@triton.jit(do_not_specialize=["num_requests", "num_nodes"])
def draw_kernel(
    logits,
    row_stride,
    bitmask,
    mask_stride,
    array,
    num_requests,
    num_nodes,
    peaks,  # [nodes, PARTS] fp32
    noisy,  # [nodes, PARTS] fp32
    noisy_ids,  # [nodes, PARTS] int32
    masses,  # [nodes, PARTS] int64
    VOCAB: tl.constexpr,
    PARTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_MASK: tl.constexpr,
):
    """A program a (node, part), for nodes that are sampled without top-k. MUTATES its entries of the last three."""
    node = tl.program_id(0)
    part = tl.program_id(1)
    pack = (array, num_requests, num_nodes)
    request, position = request_of(pack, node)
    temperature, top_k, top_p, floor, seed = filters_of(pack, request, VOCAB)
    if (temperature > 0) & (top_k == 0):
        every = tl.arange(0, PARTS)
        is_part = every < tl.cdiv(VOCAB, SUB * PART)
        largest = tl.max(tl.load(peaks + node * PARTS + every, mask=is_part, other=float("-inf")))
        subs = part * PART + tl.arange(0, PART)
        ids = token_ids(subs)
        source = (logits, row_stride, bitmask, mask_stride)
        tile = logit_tile(source, pack, node, ids, VOCAB, HAS_BIAS, HAS_MASK)
        scores = to_scores(tile, largest, temperature)
        best = float("-inf")
        best_id = NO_TOKEN + 0
        if tl.max(scores) >= floor:
            noise = block_noise(seed, position, noise_blocks(subs), PART, SUB // 4)
            best, best_id = best_of(tl.where(scores >= floor, scores + noise, float("-inf")), ids)
        tl.store(noisy + node * PARTS + part, best)
        tl.store(noisy_ids + node * PARTS + part, best_id)
        if top_p < 1:
            tl.store(masses + node * PARTS + part, mass_of(scores, scores > float("-inf")))
