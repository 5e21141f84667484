"""What the sampling kernels read: the packed arrays of a walk, and tiles of a node's logits.

The pack is one int32 array, so that it takes one copy to the device. Of b requests and n nodes: node_indptr [b + 1],
tokens [n], first_child [n], next_sibling [n]; then, unless all are greedy, request [n], position of the node [n],
temperature [b], top_k [b], top_p [b], floor [b], seed [2 b]; then, where there are bias terms, bias_indptr [n + 1],
bias_token [t], bias_value [t]. Floats and seeds by their bits.

Kernels hold it as the tuple (pack, b, n), and logits as the tuple (logits, stride of a row, token bitmask, stride of a
row of it).
"""

from __future__ import annotations

import triton
import triton.language as tl

SUB = tl.constexpr(512)  # tokens of a sub-chunk, whose largest logit is known to the filters
PART = tl.constexpr(4)  # sub-chunks that one program of the first passes takes
NO_TOKEN = tl.constexpr(2**31 - 1)


@triton.jit
def request_of(pack, node):
    """(request, position of the token to draw) of a node."""
    array, num_requests, num_nodes = pack
    entry = array + num_requests + 1 + 3 * num_nodes + node
    return tl.load(entry), tl.load(entry + num_nodes) + 1


@triton.jit
def filters_of(pack, request, VOCAB: tl.constexpr):
    """(temperature, top_k or 0 where it drops nothing, top_p, floor of the scores, seed) of a request."""
    array, num_requests, num_nodes = pack
    entry = array + num_requests + 1 + 5 * num_nodes + request
    temperature = tl.load(entry).to(tl.float32, bitcast=True)
    top_k = tl.load(entry + num_requests)
    top_p = tl.load(entry + 2 * num_requests).to(tl.float32, bitcast=True)
    floor = tl.load(entry + 3 * num_requests).to(tl.float32, bitcast=True)
    halves = entry + 4 * num_requests + request
    seed = (tl.load(halves + 1).to(tl.int64) << 32) | (tl.load(halves).to(tl.int64) & 0xFFFFFFFF)
    return temperature, tl.where(top_k < VOCAB, top_k, 0), top_p, floor, seed


@triton.jit
def token_ids(subs):
    """int32 [R, SUB]: the tokens of sub-chunks [R]."""
    return subs[:, None] * SUB + tl.arange(0, SUB)[None, :]


@triton.jit
def noise_blocks(subs):
    """int32 [R, SUB / 4]: the Philox blocks of sub-chunks [R]."""
    return subs[:, None] * (SUB // 4) + tl.arange(0, SUB // 4)[None, :]


@triton.jit
def logit_tile(source, pack, node, ids, VOCAB: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr):
    """fp32, the shape of ids: a node's logits with its bias, -inf for what is masked, no number, or no token."""
    logits, row_stride, bitmask, mask_stride = source
    array, num_requests, num_nodes = pack
    tile = tl.load(logits + node.to(tl.int64) * row_stride + ids, mask=ids < VOCAB, other=float("-inf"))
    if HAS_BIAS:
        indptr = array + 7 * num_requests + 1 + 5 * num_nodes
        terms = indptr + num_nodes + 1
        values = terms + tl.load(indptr + num_nodes)
        for term in range(tl.load(indptr + node), tl.load(indptr + node + 1)):
            value = tl.load(values + term).to(tl.float32, bitcast=True)
            tile = tl.where(ids == tl.load(terms + term), tile + value, tile)
    if HAS_MASK:
        words = tl.load(bitmask + node.to(tl.int64) * mask_stride + (ids >> 5), mask=ids < VOCAB, other=0)
        tile = tl.where(((words >> (ids & 31)) & 1) != 0, tile, float("-inf"))
    return tl.where(tile == tile, tile, float("-inf"))


@triton.jit
def best_of(values, ids):
    """(largest value, the lowest id that has it) of a tile; NO_TOKEN where all are -inf."""
    best = tl.max(values)
    found = (values == best) & (values > float("-inf"))
    return best, tl.min(tl.where(found, ids, NO_TOKEN))


@triton.jit
def to_scores(logits, largest, temperature):
    """(logits - largest) / temperature, rounded as the reference rounds; -inf where all logits are."""
    return tl.div_rn(logits - tl.where(largest == float("-inf"), 0.0, largest), temperature)


@triton.jit
def mass_of(scores, counted):
    """int64: the sum of exp(score) in units of 2^-44, of 262,144 scores at most. The same in any order."""
    weights = tl.exp(tl.where(counted, scores, 0.0)) * (2.0**44)
    return tl.sum(tl.where(counted, weights.to(tl.int64), 0))
