"""The walk down each tree by the tokens drawn at its nodes."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton_ops.tiles import PART, SUB, best_of, filters_of

MAX_NODES = tl.constexpr(64)  # of a tree: its ancestors are a mask of 64 bits
PATH_SHIFT = tl.constexpr(6)  # an entry of a path: token << 6 | local node


@triton.jit(do_not_specialize=["num_requests", "num_nodes", "path_stride"])
def walk_kernel(
    array,
    num_requests,
    num_nodes,
    peaks,  # [nodes, PARTS] fp32
    peak_ids,  # [nodes, PARTS] int32
    noisy,  # [nodes, PARTS] fp32
    noisy_ids,  # [nodes, PARTS] int32
    drawn,  # [nodes] int32
    paths,  # [requests, path_stride] int32: nodes of the path, then their entries
    path_stride,
    VOCAB: tl.constexpr,
    PARTS: tl.constexpr,
    ALL_GREEDY: tl.constexpr,
):
    """A program a request. MUTATES its row of paths."""
    request = tl.program_id(0)
    root = tl.load(array + request)
    lane = tl.arange(0, MAX_NODES)
    is_node = lane < tl.load(array + request + 1) - root
    tree = array + num_requests + 1 + root + lane
    tokens = tl.load(tree, mask=is_node, other=-1)
    first_child = tl.load(tree + num_nodes, mask=is_node, other=-1)
    next_sibling = tl.load(tree + 2 * num_nodes, mask=is_node, other=-1)
    is_greedy = True
    is_filtered = False
    if not ALL_GREEDY:
        filters = filters_of((array, num_requests, num_nodes), request, VOCAB)
        temperature, top_k, top_p = filters[0], filters[1], filters[2]
        is_greedy = temperature == 0
        is_filtered = (temperature > 0) & ((top_k > 0) | (top_p < 1))

    every = tl.arange(0, PARTS)
    is_part = every < tl.cdiv(VOCAB, SUB * PART)
    local = 0
    length = 0
    while local >= 0:
        if is_filtered:
            token = tl.load(drawn + root + local)
        else:
            entry = (root + local) * PARTS + every
            best = tl.load(tl.where(is_greedy, peaks, noisy) + entry, mask=is_part, other=float("-inf"))
            best_id = tl.load(tl.where(is_greedy, peak_ids, noisy_ids) + entry, mask=is_part, other=0)
            token = best_of(best, best_id)[1]
        token = tl.minimum(token, VOCAB - 1)
        length += 1
        tl.store(paths + request * path_stride + length, (token << PATH_SHIFT) | local)
        local = _at(first_child, lane, local)
        while (local >= 0) & (_at(tokens, lane, tl.maximum(local, 0)) != token):
            local = _at(next_sibling, lane, local)
    tl.store(paths + request * path_stride, length)


@triton.jit
def _at(values, lane, place):
    """values[place], from registers."""
    return tl.sum(tl.where(lane == place, values, 0))
