"""The k largest of each row, ties to the lowest index: chunks of a row in parallel, then their best together.

A score and its index make one int64 key, so that keys are distinct and their order is the op's order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_K = 256
_FEW = tl.constexpr(16)  # up to here one maximum after the other; above it the k-th key is found by its bits
_CHUNK = 2048
_NOTHING = tl.constexpr(-(2**63))
_LOW_BITS = tl.constexpr(2**31 - 1)


def top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """As ``Ops.top_k``, for k up to MAX_K. scores: fp32, rows may be apart."""
    return _select(scores, k, log_probs=False)


def top_k_log_probs(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """As ``Ops.top_k_log_probs``, for k up to MAX_K. scores: fp32, rows may be apart."""
    return _select(scores, k, log_probs=True)


def _select(scores: Tensor, k: int, *, log_probs: bool) -> tuple[Tensor, Tensor]:
    num_rows, num_scores = scores.shape
    assert scores.dtype == torch.float32 and scores.stride(1) == 1 and 1 <= k <= min(num_scores, MAX_K)
    device = scores.device
    values = torch.empty((num_rows, k), dtype=torch.float32, device=device)
    indices = torch.empty((num_rows, k), dtype=torch.int64, device=device)
    if not num_rows:
        return values, indices
    padded_k = triton.next_power_of_2(k)
    chunk = max(padded_k, min(triton.next_power_of_2(num_scores), _CHUNK))
    num_chunks = triton.cdiv(num_scores, chunk)
    keys = torch.empty((num_rows, num_chunks, padded_k), dtype=torch.int64, device=device)
    sums = torch.empty((num_rows, num_chunks, 2), dtype=torch.float32, device=device)
    sizes = dict(K=padded_k, NUM_CHUNKS=num_chunks, LOG_PROBS=log_probs)
    _chunk_kernel[(num_rows, num_chunks)](
        scores, scores.stride(0), num_scores, keys, sums, values, indices, k, CHUNK=chunk, **sizes, num_warps=4
    )
    if num_chunks > 1 or padded_k > _FEW.value:
        padded = triton.next_power_of_2(num_chunks)
        warps = min(8, max(1, padded * padded_k // 256))
        _merge_kernel[(num_rows,)](keys, sums, values, indices, k, PADDED=padded, **sizes, num_warps=warps)
    return values, indices


@triton.jit(do_not_specialize=["k"])
def _chunk_kernel(
    scores,
    row_stride,
    num_scores,
    keys,
    sums,
    values,
    indices,
    k,
    CHUNK: tl.constexpr,
    K: tl.constexpr,
    NUM_CHUNKS: tl.constexpr,
    LOG_PROBS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    index = chunk * CHUNK + tl.arange(0, CHUNK)
    score = tl.load(scores + row * row_stride + index, mask=index < num_scores, other=float("-inf"))
    found = tl.where(index < num_scores, _to_keys(score, index), _NOTHING)
    peak = 0.0
    total = 1.0
    if LOG_PROBS:
        peak = tl.max(score)
        total = tl.sum(tl.exp(score - tl.where(peak == float("-inf"), 0.0, peak)))
    place = row * NUM_CHUNKS + chunk
    if K > _FEW:
        _gather_largest(found, k, keys + place * K, K)
    elif NUM_CHUNKS > 1:
        tl.store(keys + place * K + tl.arange(0, K), _sorted_largest(found, K))
    else:
        _store(values, indices, row, k, _sorted_largest(found, K), peak + tl.log(total), K)
    if LOG_PROBS:
        tl.store(sums + 2 * place, peak)
        tl.store(sums + 2 * place + 1, total)


@triton.jit(do_not_specialize=["k"])
def _merge_kernel(
    keys,
    sums,
    values,
    indices,
    k,
    K: tl.constexpr,
    NUM_CHUNKS: tl.constexpr,
    LOG_PROBS: tl.constexpr,
    PADDED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    candidate = tl.arange(0, PADDED * K)
    found = tl.load(keys + row * NUM_CHUNKS * K + candidate, mask=candidate < NUM_CHUNKS * K, other=_NOTHING)
    log_total = 0.0
    if LOG_PROBS:
        chunk = tl.arange(0, PADDED)
        entry = sums + 2 * (row * NUM_CHUNKS + chunk)
        peaks = tl.load(entry, mask=chunk < NUM_CHUNKS, other=float("-inf"))
        totals = tl.load(entry + 1, mask=chunk < NUM_CHUNKS, other=0.0)
        peak = tl.max(peaks)
        log_total = peak + tl.log(tl.sum(totals * tl.exp(peaks - peak)))
    if K > _FEW:
        own = keys + row * NUM_CHUNKS * K
        tl.debug_barrier()  # all have read before any writes
        _gather_largest(found, k, own, K)
        tl.debug_barrier()
        best = tl.sort(tl.load(own + tl.arange(0, K)), descending=True)
    else:
        best = _sorted_largest(found, K)
    _store(values, indices, row, k, best, log_total, K)


@triton.jit
def _to_keys(score, index):
    """int64: greater for a greater score, and among equals for a lower index."""
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)  # -0 equals 0
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (index ^ _LOW_BITS).to(tl.int64)  # the lower index is the greater


@triton.jit
def _sorted_largest(keys, K: tl.constexpr):
    """The K largest of distinct keys, descending."""
    place = tl.arange(0, K)
    best = tl.full([K], _NOTHING, tl.int64)
    for i in range(K):
        top = tl.max(keys)
        best = tl.where(place == i, top, best)
        keys = tl.where(keys == top, _NOTHING, keys)
    return best


@triton.jit
def _gather_largest(keys, k, out, K: tl.constexpr):
    """Stores the k largest of distinct keys to out, in their order, and _NOTHING after them, up to K."""
    least = tl.full([], _NOTHING, tl.int64)
    count = k + 1
    bit = 63
    while (bit >= 0) & (count != k):
        raised = least ^ (tl.full([], 1, tl.int64) << bit)  # the sign's bit is set at first, and clearing it raises
        above = tl.sum((keys >= raised).to(tl.int32))
        if above >= k:
            least = raised
            count = above
        bit -= 1
    chosen = (keys >= least) & (keys > _NOTHING)
    place = tl.cumsum(chosen.to(tl.int32)) - 1
    tl.store(out + place, keys, mask=chosen)
    spare = tl.arange(0, K)
    tl.store(out + spare, _NOTHING, mask=spare >= tl.sum(chosen.to(tl.int32)))


@triton.jit
def _store(values, indices, row, k, best, log_total, K: tl.constexpr):
    place = tl.arange(0, K)
    ordered = (best >> 32).to(tl.int32)
    value = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    index = (best ^ _LOW_BITS) & _LOW_BITS
    tl.store(values + row * k + place, value - log_total, mask=place < k)
    tl.store(indices + row * k + place, index, mask=place < k)
