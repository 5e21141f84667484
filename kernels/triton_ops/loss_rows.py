"""What training does to each row of logits, in one program a row: soft targets of a target's, loss and gradient of a
head's. A row is read from memory once; the passes after the first find it in the L2 cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096
_WARPS = 8


def loss_and_grad(logits: Tensor, probs: Tensor, weights: Tensor, *, wants_grad: bool) -> tuple[Tensor, Tensor]:
    """Cross-entropy of logits to probs, times weights, and each row's likeliest column.

    logits: [n, width] of any float dtype, MUTATED with wants_grad: it becomes the gradient of the losses' sum; probs:
    [n, width] fp32, each row's sum 1 or its weight 0; weights: [n] fp32. Returns [n] fp32 and [n] int64.
    """
    num_rows, width = logits.shape
    assert logits.stride(1) == probs.stride(1) == 1 and weights.is_contiguous() and probs.dtype == torch.float32
    losses = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    best = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if num_rows:
        _loss_kernel[(num_rows,)](
            logits,
            probs,
            weights,
            losses,
            best,
            width,
            logits.stride(0),
            probs.stride(0),
            WANTS_GRAD=wants_grad,
            BLOCK=_block(width),
            num_warps=_WARPS,
        )
    return losses, best


def soft_targets(
    logits: Tensor,
    places: Tensor,
    tables: tuple[Tensor, Tensor],
    results: tuple[Tensor, Tensor, Tensor],
    *,
    scale: float,
) -> None:
    """MUTATES results at the places of the rows: what a target's logits say within a draft vocabulary.

    logits: [n, V] fp32; places: [n] int64, rows of the results. tables: the target's id of each draft id [D] int64, and
    the draft id of each of the target's [V] int64, -1 for none. results: probs [m, D] fp32, the softmax of logits *
    scale over the draft vocabulary; mass [m] fp32, the share of the unscaled softmax that lies in it; best [m] int64,
    the draft id of the likeliest token.
    """
    (target_ids, draft_ids), (probs, mass, best) = tables, results
    assert logits.dtype == probs.dtype == torch.float32 and logits.stride(1) == 1
    assert all(x.is_contiguous() for x in (places, target_ids, draft_ids, probs, mass, best))
    if len(logits):
        _targets_kernel[(len(logits),)](
            logits,
            places,
            target_ids,
            draft_ids,
            probs,
            mass,
            best,
            logits.shape[1],
            len(target_ids),
            logits.stride(0),
            scale,
            BLOCK=_block(len(target_ids)),
            num_warps=_WARPS,
        )


def _block(width: int) -> int:
    return min(_BLOCK, max(16, triton.next_power_of_2(width)))


@triton.jit
def _loss_kernel(
    logits,
    probs,
    weights,
    losses,
    best,
    width,
    logits_stride,
    probs_stride,
    WANTS_GRAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * logits_stride
    probs += row * probs_stride
    column = tl.arange(0, BLOCK)
    top = float("-inf")
    total = 0.0
    dot = 0.0
    mass = 0.0
    found = 0
    for start in range(0, width, BLOCK):
        is_in = start + column < width
        z = tl.load(logits + start + column, mask=is_in, other=float("-inf")).to(tl.float32)
        p = tl.load(probs + start + column, mask=is_in, other=0.0)
        block_top, at = tl.max(z, 0, return_indices=True)
        found = tl.where(block_top > top, start + at, found)
        new_top = tl.maximum(top, block_top)
        total = total * tl.exp(top - new_top) + tl.sum(tl.exp(z - new_top), 0)
        dot += tl.sum(p * tl.where(is_in, z, 0.0), 0)
        mass += tl.sum(p, 0)
        top = new_top
    lse = top + tl.log(total)
    weight = tl.load(weights + row)
    tl.store(losses + row, (lse * mass - dot) * weight)
    tl.store(best + row, found)
    if WANTS_GRAD:
        for start in range(0, width, BLOCK):
            is_in = start + column < width
            z = tl.load(logits + start + column, mask=is_in, other=0.0).to(tl.float32)
            p = tl.load(probs + start + column, mask=is_in, other=0.0)
            grad = (tl.exp(z - lse) - p) * weight
            tl.store(logits + start + column, grad.to(logits.dtype.element_ty), mask=is_in)


@triton.jit
def _targets_kernel(
    logits,
    places,
    target_ids,
    draft_ids,
    probs,
    mass,
    best,
    vocab,
    width,
    logits_stride,
    scale,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    place = tl.load(places + row)
    logits += row * logits_stride
    probs += place * width
    column = tl.arange(0, BLOCK)
    top = float("-inf")
    total = 0.0
    found = 0
    for start in range(0, vocab, BLOCK):
        z = tl.load(logits + start + column, mask=start + column < vocab, other=float("-inf"))
        block_top, at = tl.max(z, 0, return_indices=True)
        found = tl.where(block_top > top, start + at, found)
        new_top = tl.maximum(top, block_top)
        total = total * tl.exp(top - new_top) + tl.sum(tl.exp(z - new_top), 0)
        top = new_top
    tl.store(best + place, tl.load(draft_ids + found))

    inner_top = float("-inf")
    inner = 0.0  # sum of exponents of what is in the draft vocabulary, as it is
    scaled = 0.0  # and with the scale
    for start in range(0, width, BLOCK):
        is_in = start + column < width
        ids = tl.load(target_ids + start + column, mask=is_in, other=0)
        z = tl.load(logits + ids, mask=is_in, other=float("-inf"))
        new_top = tl.maximum(inner_top, tl.max(z, 0))
        inner = inner * tl.exp(inner_top - new_top) + tl.sum(tl.exp(z - new_top), 0)
        scaled = scaled * tl.exp((inner_top - new_top) * scale) + tl.sum(tl.exp((z - new_top) * scale), 0)
        inner_top = new_top
    tl.store(mass + place, inner * tl.exp(inner_top - top) / total)
    for start in range(0, width, BLOCK):
        is_in = start + column < width
        ids = tl.load(target_ids + start + column, mask=is_in, other=0)
        z = tl.load(logits + ids, mask=is_in, other=float("-inf"))
        tl.store(probs + start + column, tl.exp((z - inner_top) * scale) / scaled, mask=is_in)
