"""A toy target whose emitted tokens' exact distribution is computed here, independently of any backend.

Draws vary by seed alone.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import chisquare

from engine.sampling import sampling_batch
from kernels.ops import Ops, SamplingBatch, TreeBatch
from paceline.tree import DraftTree
from paceline.types import SamplingParams

VOCAB, _NUM_DRAWS, _BATCH = 12, 100_000, 20_000
FILTERS = [
    {},
    {"temperature": 0.6},
    {"top_k": 5},
    {"top_p": 0.75},
    {"min_p": 0.15},
    {"temperature": 1.3, "top_k": 8, "top_p": 0.9, "min_p": 0.05},
]
# A toy target: the next token's logits depend on the last token alone. Two logits tie on purpose.
LOGITS = torch.randn((VOCAB, VOCAB), generator=torch.Generator().manual_seed(5))
LOGITS[:, 4] = LOGITS[:, 9]
LIKELY = LOGITS.argsort(dim=1, descending=True).numpy()  # [token, rank]
FIRST, SECOND, THIRD = LIKELY[0, :3]
TREES = {
    "one node": DraftTree.single(0),
    "chain": DraftTree.chain([0, SECOND, LIKELY[SECOND, 0], 2]),
    "tree": DraftTree(
        np.array([0, THIRD, FIRST, SECOND, *LIKELY[FIRST, 1::-1], LIKELY[SECOND, 2]]), np.array([-1, 0, 0, 0, 2, 2, 3])
    ),
}
ALL = FILTERS[-1]
CASES = [("one node", ALL), ("chain", ALL), *(("tree", params) for params in FILTERS)]


def exact_distribution(last: int, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) -> np.ndarray:
    """By the definition: temperature, then top-k, then top-p on what is left, then min-p."""
    logits = LOGITS[last].double().numpy() / temperature
    ranked = sorted(range(VOCAB), key=lambda v: (-logits[v], v))
    kept = ranked[: top_k or VOCAB]
    weight = np.exp(logits - logits.max())
    total, mass, nucleus = sum(weight[v] for v in kept), 0.0, []
    for v in kept:
        if mass >= top_p * total:
            break
        nucleus.append(v)
        mass += weight[v]
    final = [v for v in nucleus if weight[v] >= min_p * weight[ranked[0]]]
    out = np.zeros(VOCAB)
    out[final] = weight[final] / weight[final].sum()
    return out


def tree_batch(tree: DraftTree, copies: int) -> TreeBatch:
    n = tree.num_nodes
    return TreeBatch(
        node_indptr=np.arange(0, n * copies + 1, n, dtype=np.int32),
        tokens=np.tile(tree.tokens, copies),
        positions=np.tile(20 + tree.depths(), copies).astype(np.int32),
        first_child=np.tile(tree.first_child(), copies),
        next_sibling=np.tile(tree.next_sibling(), copies),
    )


def draw(ops: Ops, tree: DraftTree, num_draws: int, params: dict, *, first_seed: int = 0) -> np.ndarray:
    """Emitted tokens [num_draws, longest], -1 past the end, of seeds in a row."""
    one = sampling_batch([SamplingParams(**{"temperature": 1.0, **params})])
    fields = {name: np.repeat(getattr(one, name), num_draws) for name in ("temperature", "top_k", "top_p", "min_p")}
    sampling = SamplingBatch(seed=np.arange(first_seed, first_seed + num_draws, dtype=np.uint64), **fields)
    logits = LOGITS[torch.from_numpy(np.tile(tree.tokens, num_draws)).long()].to(ops.device)
    result = ops.start_walk(logits, tree_batch(tree, num_draws), sampling).result()
    lengths = result.accept_length + 1
    emitted = np.full((num_draws, int(tree.depths().max()) + 1), -1)
    emitted[np.arange(emitted.shape[1]) < lengths[:, None]] = result.verified_id
    return emitted


def assert_follows_the_target(ops: Ops, tree: DraftTree, params: dict) -> None:
    """The first token, and the first two jointly, of many seeds."""
    counts = np.zeros((VOCAB, VOCAB + 1), np.int64)  # the last column: no second token
    for start in range(0, _NUM_DRAWS, _BATCH):
        emitted = draw(ops, tree, _BATCH, params, first_seed=start)
        second = emitted[:, 1] if emitted.shape[1] > 1 else np.full(_BATCH, -1)
        np.add.at(counts, (emitted[:, 0], second), 1)
    law = exact_distribution(int(tree.tokens[0]), **params)
    _assert_fits(counts.sum(1), law)
    children = tree.tokens[1:][tree.parents[1:] == 0]
    others = np.setdiff1d(np.arange(VOCAB), children)
    assert counts[children, -1].sum() == counts[others, :-1].sum() == 0
    joint = np.array([law[v] * exact_distribution(v, **params) for v in children]).reshape(-1)
    _assert_fits(
        np.concatenate([counts[children, :-1].ravel(), counts[others, -1]]), np.concatenate([joint, law[others]])
    )


def _assert_fits(counts: np.ndarray, probabilities: np.ndarray) -> None:
    assert counts[probabilities == 0].sum() == 0, "a token that the filters drop was drawn"
    order = np.argsort(-probabilities)
    expected, counts = probabilities[order] * counts.sum(), counts[order]
    usual = max(1, int((expected >= 10).sum()) - 1)  # rare cells go into the last one
    cells = [np.append(part[:usual], part[usual:].sum()) for part in (counts, expected)]
    assert chisquare(*cells).pvalue > 1e-3
