"""Draws under top-k and top-p without a sort.

What the filters keep is a prefix of the order (score descending, id ascending), so a token is kept if few enough tokens
and little enough mass stand ahead of it. Top-k's end is found by its score's bits, eight a pass. Top-p draws among what
is left and tests the token drawn; one that fails is the new end, and the next is drawn ahead of it: the idea of
FlashInfer's rejection sampling, https://flashinfer.ai/2025/03/10/sampling.html. With Gumbel noise the result is the
very token that a sort would give. Sub-chunks whose largest score is behind the end are never read.
"""

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

_GROUP = tl.constexpr(8)  # sub-chunks read at once
_BINS = tl.constexpr(256)


@triton.jit(do_not_specialize=["num_requests", "num_nodes"])
def filter_kernel(
    logits,
    row_stride,
    bitmask,
    mask_stride,
    array,
    num_requests,
    num_nodes,
    sub_peaks,  # [nodes, SUBS] fp32
    noisy,  # [nodes, PARTS] fp32
    noisy_ids,  # [nodes, PARTS] int32
    masses,  # [nodes, PARTS] int64
    drawn,  # [nodes] int32
    VOCAB: tl.constexpr,
    SUBS: tl.constexpr,
    PARTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_MASK: tl.constexpr,
):
    """A program a node, for those under top-k or top-p. MUTATES their entries of drawn."""
    node = tl.program_id(0)
    pack = (array, num_requests, num_nodes)
    request, position = request_of(pack, node)
    temperature, top_k, top_p, floor, seed = filters_of(pack, request, VOCAB)
    if (temperature > 0) & ((top_k > 0) | (top_p < 1)):
        sub = tl.arange(0, SUBS)
        peaks = tl.load(sub_peaks + node * SUBS + sub, mask=sub < tl.cdiv(VOCAB, SUB), other=float("-inf"))
        largest = tl.max(peaks)
        peaks = to_scores(peaks, largest, temperature)
        row = (logits, row_stride, bitmask, mask_stride, pack, node, peaks, largest, temperature)
        noise = (seed, position, floor)
        if top_k > 0:
            end, end_id = _end_of_top_k(row, top_k, VOCAB, SUBS, HAS_BIAS, HAS_MASK)
            token, score, total = _draw_ahead(row, noise, end, end_id, VOCAB, SUBS, HAS_BIAS, HAS_MASK)
        else:
            every = tl.arange(0, PARTS)
            is_part = every < tl.cdiv(VOCAB, SUB * PART)
            best = tl.load(noisy + node * PARTS + every, mask=is_part, other=float("-inf"))
            token = best_of(best, tl.load(noisy_ids + node * PARTS + every, mask=is_part, other=0))[1]
            total = tl.sum(tl.load(masses + node * PARTS + every, mask=is_part, other=0))
            score = _score_at(row, token, VOCAB, HAS_BIAS, HAS_MASK)
        if top_p < 1:
            most = top_p.to(tl.float64) * total.to(tl.float64)
            before = _mass_ahead(row, score, token, VOCAB, SUBS, HAS_BIAS, HAS_MASK)
            while (before > 0) & (before.to(tl.float64) >= most):
                token, score, before = _draw_ahead(row, noise, score, token, VOCAB, SUBS, HAS_BIAS, HAS_MASK)
                before = _mass_ahead(row, score, token, VOCAB, SUBS, HAS_BIAS, HAS_MASK)
        tl.store(drawn + node, token)


@triton.jit
def _draw_ahead(
    row,
    noise,
    end,
    end_id,
    VOCAB: tl.constexpr,
    SUBS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_MASK: tl.constexpr,
):
    """(the token of most score plus noise, its score, the mass of all) of what stands ahead of (end, end_id)."""
    seed, position, floor = noise
    peaks = row[6]
    ranks, count = _ranks(peaks >= end, VOCAB, SUBS)
    best = float("-inf")
    token = NO_TOKEN + 0
    score = float("-inf")
    mass = tl.full([], 0, tl.int64)
    for group in range(tl.cdiv(count, _GROUP)):
        subs = _members(ranks, count, group, SUBS)
        scores, ids = _score_tile(row, subs, VOCAB, HAS_BIAS, HAS_MASK)
        is_ahead = _is_ahead(scores, ids, end, end_id)
        mass += mass_of(scores, is_ahead)
        noisy = scores + block_noise(seed, position, noise_blocks(subs), _GROUP, SUB // 4)
        noisy = tl.where(is_ahead & (scores >= floor), noisy, float("-inf"))
        group_best, group_token = best_of(noisy, ids)
        if group_best > best:
            best = group_best
            token = group_token
            score = tl.max(tl.where(ids == group_token, scores, float("-inf")))
    return token, score, mass


@triton.jit
def _mass_ahead(
    row, end, end_id, VOCAB: tl.constexpr, SUBS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr
):
    """int64: the mass of what stands ahead of (end, end_id)."""
    peaks = row[6]
    ranks, count = _ranks(peaks >= end, VOCAB, SUBS)
    mass = tl.full([], 0, tl.int64)
    for group in range(tl.cdiv(count, _GROUP)):
        subs = _members(ranks, count, group, SUBS)
        scores, ids = _score_tile(row, subs, VOCAB, HAS_BIAS, HAS_MASK)
        mass += mass_of(scores, _is_ahead(scores, ids, end, end_id))
    return mass


@triton.jit
def _end_of_top_k(row, top_k, VOCAB: tl.constexpr, SUBS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr):
    """(end, end_id): exactly top_k tokens stand ahead of them.

    Scores are at most 0, so that the bits of -score grow as the score falls. As many sub-chunks' largest as top_k bound
    what need be read.
    """
    peaks = row[6]
    peak_bits = _depth_bits(peaks)
    bound = tl.full([], 0, tl.uint32)
    for bit in range(32):
        raised = bound | (tl.full([], 0x80000000, tl.uint32) >> bit)
        if tl.sum((peak_bits < raised).to(tl.int32)) < top_k:
            bound = raised
    ranks, count = _ranks(peak_bits <= bound, VOCAB, SUBS)
    num_groups = tl.cdiv(count, _GROUP)

    found = tl.full([], 0, tl.uint32)  # the bits of the top_k-th token's depth, as far as known
    room = top_k  # tokens still to find among those that share them
    num_equal = 0
    for digit in range(4):
        histogram = tl.zeros([_BINS], tl.int32)
        for group in range(num_groups):
            subs = _members(ranks, count, group, SUBS)
            scores, ids = _score_tile(row, subs, VOCAB, HAS_BIAS, HAS_MASK)
            shifted = _depth_bits(scores) >> (24 - 8 * digit)
            counted = ((shifted >> 8) == found) & (ids < VOCAB)
            digits = tl.reshape((shifted & 255).to(tl.int32), [_GROUP * SUB])
            histogram += tl.histogram(digits, _BINS, mask=tl.reshape(counted, [_GROUP * SUB]))
        filled = tl.cumsum(histogram)
        place = tl.sum((filled < room).to(tl.int32))
        bins = tl.arange(0, _BINS)
        num_equal = tl.sum(tl.where(bins == place, histogram, 0))
        room -= tl.sum(tl.where(bins < place, histogram, 0))
        found = (found << 8) | place.to(tl.uint32)

    end = 0.0 - (found >> 1).to(tl.float32, bitcast=True)
    end_id = NO_TOKEN + 0
    if (num_equal > room) & (end > float("-inf")):
        end_id = _nth_equal(row, ranks, count, end, room, VOCAB, SUBS, HAS_BIAS, HAS_MASK) + 1
    return end, end_id


@triton.jit
def _nth_equal(
    row,
    ranks,
    count,
    value,
    nth,
    VOCAB: tl.constexpr,
    SUBS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_MASK: tl.constexpr,
):
    """The nth lowest id, from 1, whose score is value."""
    seen = 0
    nth_id = NO_TOKEN + 0
    for group in range(tl.cdiv(count, _GROUP)):
        subs = _members(ranks, count, group, SUBS)
        scores, ids = _score_tile(row, subs, VOCAB, HAS_BIAS, HAS_MASK)
        equal = tl.reshape((scores == value).to(tl.int32), [_GROUP * SUB])
        order = seen + tl.cumsum(equal)
        hit = (equal > 0) & (order == nth)
        nth_id = tl.minimum(nth_id, tl.min(tl.where(hit, tl.reshape(ids, [_GROUP * SUB]), NO_TOKEN)))
        seen += tl.sum(equal)
    return nth_id


@triton.jit
def _score_tile(row, subs, VOCAB: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr):
    """(scores, ids) [_GROUP, SUB] of sub-chunks; -inf where is_sub is not set."""
    logits, row_stride, bitmask, mask_stride, pack, node, _, largest, temperature = row
    ids = token_ids(subs)
    source = (logits, row_stride, bitmask, mask_stride)
    tile = logit_tile(source, pack, node, ids, VOCAB, HAS_BIAS, HAS_MASK)
    return to_scores(tile, largest, temperature), ids


@triton.jit
def _score_at(row, token, VOCAB: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr):
    logits, row_stride, bitmask, mask_stride, pack, node, _, largest, temperature = row
    source = (logits, row_stride, bitmask, mask_stride)
    value = logit_tile(source, pack, node, token + tl.arange(0, 1), VOCAB, HAS_BIAS, HAS_MASK)
    return tl.max(to_scores(value, largest, temperature))


@triton.jit
def _ranks(wanted, VOCAB: tl.constexpr, SUBS: tl.constexpr):
    """(rank of each wanted sub-chunk or -1, how many are wanted)."""
    wanted = wanted & (tl.arange(0, SUBS) < tl.cdiv(VOCAB, SUB))
    ones = wanted.to(tl.int32)
    return tl.where(wanted, tl.cumsum(ones) - 1, -1), tl.sum(ones)


@triton.jit
def _members(ranks, count, group, SUBS: tl.constexpr):
    """The sub-chunks [_GROUP] of a group, ascending; past the last one comes SUBS, whose tokens do not exist."""
    wanted = group * _GROUP + tl.arange(0, _GROUP)
    sub = tl.arange(0, SUBS)
    subs = tl.sum(tl.where(ranks[:, None] == wanted[None, :], sub[:, None], 0), axis=0)
    return tl.where(wanted < count, subs, SUBS)


@triton.jit
def _is_ahead(scores, ids, end, end_id):
    return (scores > end) | ((scores == end) & (ids < end_id) & (scores > float("-inf")))


@triton.jit
def _depth_bits(scores):
    """uint32, even: greater for a lower score, which is at most 0."""
    return tl.abs(scores).to(tl.uint32, bitcast=True) << 1
