"""Growth of proposal trees, one program a session: protocol.md, "Building the tree".

A candidate's rank is the count of those before it, which is exact for ties and needs no sort: at 64 candidates, the
most of usual shapes' levels, that is 64 comparisons a lane.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.growth import GrowingTrees

_TILE = 8192  # comparisons of one program at a time
_MAX_CHUNK = 64
_WIDE = 512  # candidates from which on a program takes eight warps


def grow_beam(trees: GrowingTrees, log_probs: Tensor, draft_ids: Tensor, level: int) -> None:
    """As ``Ops.grow_beam``, in one launch."""
    shape, found, inputs, rows = trees.shape, trees.candidates, trees.inputs, trees.rows
    num_children = shape.topk if level == 0 else shape.topk**2
    block = triton.next_power_of_2(num_children)
    _grow_kernel[(trees.num_sessions,)](
        log_probs.contiguous(),
        draft_ids.contiguous(),
        inputs.target_ids,
        inputs.num_steps,
        inputs.topk,
        inputs.committed_len,
        inputs.scratch_slots,
        found.scores,
        found.tokens,
        found.parents,
        found.beams,
        found.paths,
        rows.tokens,
        rows.parent_rows,
        rows.positions,
        rows.slots,
        rows.ancestors,
        rows.local_len,
        len(inputs.target_ids),
        trees.num_sessions,
        level,
        shape.first_of(level),
        NUM_CANDIDATES=shape.num_candidates,
        NUM_CHILDREN=num_children,
        TOPK=shape.topk,
        IS_FIRST=level == 0,
        IS_LAST=level + 1 == shape.num_steps,
        BLOCK=block,
        CHUNK=_chunk(block),
        num_warps=8 if block >= _WIDE else 4,
    )


def choose_nodes(trees: GrowingTrees) -> None:
    """As ``Ops.choose_nodes``, in one launch."""
    shape, found = trees.shape, trees.candidates
    block = triton.next_power_of_2(shape.num_candidates)
    _choose_kernel[(trees.num_sessions,)](
        found.scores,
        found.tokens,
        found.parents,
        found.places,
        trees.inputs.num_nodes,
        trees.inputs.min_score,
        trees.inputs.roots,
        trees.nodes,
        NUM_CANDIDATES=shape.num_candidates,
        NUM_NODES=shape.num_nodes,
        BLOCK=block,
        CHUNK=_chunk(block),
        NODE_BLOCK=triton.next_power_of_2(shape.num_nodes),
        num_warps=8 if block >= _WIDE else 4,
    )


def _chunk(block: int) -> int:
    return max(1, min(_MAX_CHUNK, _TILE // block, block))


@triton.jit
def _finite_or_nothing(scores):
    is_finite = (scores > float("-inf")) & (scores < float("inf"))
    return tl.where(is_finite, scores, float("-inf"))


@triton.jit
def _child_scores(
    log_probs,
    scores,
    beam,
    session,
    child,
    width,
    NUM_CHILDREN: tl.constexpr,
    TOPK: tl.constexpr,
    NUM_CANDIDATES: tl.constexpr,
    IS_FIRST: tl.constexpr,
):
    """Of the children of a session's beam nodes, -inf for those past its own width."""
    is_wanted = (child < NUM_CHILDREN) & (child % TOPK < width) & (child // TOPK < width)
    log_prob = tl.load(log_probs + session * NUM_CHILDREN + child, mask=is_wanted, other=float("-inf"))
    total = _finite_or_nothing(log_prob)
    if not IS_FIRST:
        parent = tl.load(beam + child // TOPK, mask=is_wanted, other=0)
        total += tl.load(scores + session * NUM_CANDIDATES + parent, mask=is_wanted, other=0.0)
    return total


@triton.jit(do_not_specialize=["num_sessions", "level", "first"])
def _grow_kernel(
    log_probs,
    draft_ids,
    target_ids,
    num_steps,
    topk,
    committed_len,
    scratch_slots,
    scores,
    tokens,
    parents,
    beams,
    paths,
    row_tokens,
    row_parents,
    row_positions,
    row_slots,
    row_ancestors,
    row_local_len,
    vocab_size,
    num_sessions,
    level,
    first,
    NUM_CANDIDATES: tl.constexpr,
    NUM_CHILDREN: tl.constexpr,
    TOPK: tl.constexpr,
    IS_FIRST: tl.constexpr,
    IS_LAST: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
):
    session = tl.program_id(0).to(tl.int64)
    child = tl.arange(0, BLOCK)
    is_child = child < NUM_CHILDREN
    place = child // TOPK
    above = ((level - 1) * num_sessions + session) * TOPK
    beam = beams + above
    width = tl.where(level < tl.load(num_steps + session), tl.load(topk + session), 0)
    own = _child_scores(log_probs, scores, beam, session, child, width, NUM_CHILDREN, TOPK, NUM_CANDIDATES, IS_FIRST)
    # What the head gave for a row of NaNs may lie outside the vocabulary.
    draft_id = tl.load(draft_ids + session * NUM_CHILDREN + child, mask=is_child, other=0)
    draft_id = tl.minimum(tl.maximum(draft_id, 0), vocab_size - 1)
    token = tl.load(target_ids + draft_id, mask=is_child, other=0)
    at = session * NUM_CANDIDATES + first + child
    tl.store(scores + at, own, mask=is_child)
    tl.store(tokens + at, token.to(tl.int32), mask=is_child)
    if IS_FIRST:
        tl.store(parents + at, tl.full([BLOCK], -1, tl.int32), mask=is_child)
    else:
        tl.store(parents + at, tl.load(beam + place, mask=is_child, other=0), mask=is_child)
    if not IS_LAST:
        rank = tl.zeros([BLOCK], tl.int32)
        for start in range(0, NUM_CHILDREN, CHUNK):
            other = start + tl.arange(0, CHUNK)
            theirs = _child_scores(
                log_probs, scores, beam, session, other, width, NUM_CHILDREN, TOPK, NUM_CANDIDATES, IS_FIRST
            )
            is_before = (theirs[None, :] > own[:, None]) | (
                (theirs[None, :] == own[:, None]) & (other[None, :] < child[:, None])
            )
            rank += tl.sum(is_before.to(tl.int32), axis=1)
        is_best = is_child & (rank < TOPK)
        row = session * TOPK + rank
        scratch = level * TOPK + rank
        path = tl.full([BLOCK], 1, tl.int64) << scratch.to(tl.int64)
        if IS_FIRST:
            parent_row = session + tl.zeros([BLOCK], tl.int64)
        else:
            parent_row = session * TOPK + place
            path |= tl.load(paths + above + place, mask=is_best, other=0)
        here = (level * num_sessions + session) * TOPK + rank
        tl.store(beams + here, (first + child).to(tl.int32), mask=is_best)
        tl.store(paths + here, path, mask=is_best)
        tl.store(row_tokens + row, token, mask=is_best)
        tl.store(row_parents + row, parent_row, mask=is_best)
        tl.store(row_positions + row, tl.load(committed_len + session) + level, mask=is_best)
        slot = tl.load(scratch_slots + scratch * num_sessions + session, mask=is_best, other=0)
        tl.store(row_slots + row, slot, mask=is_best)
        tl.store(row_ancestors + row, path, mask=is_best)
        tl.store(row_local_len + session, (level + 1) * TOPK)


@triton.jit
def _choose_kernel(
    scores,
    tokens,
    parents,
    places,
    num_nodes,
    min_score,
    roots,
    nodes,
    NUM_CANDIDATES: tl.constexpr,
    NUM_NODES: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    NODE_BLOCK: tl.constexpr,
):
    session = tl.program_id(0).to(tl.int64)
    mine = session * NUM_CANDIDATES
    index = tl.arange(0, BLOCK)
    is_candidate = index < NUM_CANDIDATES
    own = tl.load(scores + mine + index, mask=is_candidate, other=float("-inf"))
    rank = tl.zeros([BLOCK], tl.int32)
    for start in range(0, NUM_CANDIDATES, CHUNK):
        other = start + tl.arange(0, CHUNK)
        theirs = tl.load(scores + mine + other, mask=other < NUM_CANDIDATES, other=float("-inf"))
        is_before = (theirs[None, :] > own[:, None]) | (
            (theirs[None, :] == own[:, None]) & (other[None, :] < index[:, None])
        )
        rank += tl.sum(is_before.to(tl.int32), axis=1)
    is_fit = (own > float("-inf")) & (own >= tl.load(min_score + session).to(tl.float32))
    is_chosen = is_candidate & is_fit & (rank < tl.load(num_nodes + session) - 1)
    place = tl.cumsum(is_chosen.to(tl.int32), axis=0)
    num_chosen = tl.sum(is_chosen.to(tl.int32), axis=0)
    tl.store(places + mine + index, place, mask=is_candidate)
    tl.debug_barrier()  # a parent's place was stored by another lane
    parent = tl.load(parents + mine + index, mask=is_chosen, other=-1)
    up = tl.load(places + mine + parent, mask=is_chosen & (parent >= 0), other=0)

    out = nodes + session * (1 + 2 * NUM_NODES)
    tl.store(out + 1 + place, tl.load(tokens + mine + index, mask=is_chosen, other=0), mask=is_chosen)
    tl.store(out + 1 + NUM_NODES + place, up, mask=is_chosen)
    node = tl.arange(0, NODE_BLOCK)
    is_unused = (node < NUM_NODES) & (node > num_chosen)
    nothing = tl.full([NODE_BLOCK], -1, tl.int32)
    tl.store(out + 1 + node, nothing, mask=is_unused)
    tl.store(out + 1 + NUM_NODES + node, nothing, mask=is_unused | (node == 0))
    tl.store(out, num_chosen + 1)
    tl.store(out + 1, tl.load(roots + session).to(tl.int32))
