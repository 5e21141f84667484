"""What a verify emits is distributed as the target: the exact distribution is computed here, independently.

Draws vary by seed alone. A tree must not change the distribution, whatever its tokens are.
"""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from engine.sampling import sampling_batch
from kernels.ops import SamplingBatch, TreeBatch
from kernels.reference.ops import ReferenceOps
from paceline.tree import DraftTree
from paceline.types import SamplingParams

VOCAB, NUM_DRAWS, BATCH = 12, 100_000, 20_000
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


def draw(tree: DraftTree, first_seed: int, num_draws: int, params: dict) -> tuple[np.ndarray, np.ndarray]:
    """Emitted tokens [num_draws, longest], -1 past the end, and accept lengths, of seeds in a row."""
    one = sampling_batch([SamplingParams(**{"temperature": 1.0, **params})])
    fields = {name: np.repeat(getattr(one, name), num_draws) for name in ("temperature", "top_k", "top_p", "min_p")}
    sampling = SamplingBatch(seed=np.arange(first_seed, first_seed + num_draws, dtype=np.uint64), **fields)
    logits = LOGITS[torch.from_numpy(np.tile(tree.tokens, num_draws)).long()]
    result = ReferenceOps().start_walk(logits, tree_batch(tree, num_draws), sampling).result()
    lengths = result.accept_length + 1
    emitted = np.full((num_draws, int(tree.depths().max()) + 1), -1)
    emitted[np.arange(emitted.shape[1]) < lengths[:, None]] = result.verified_id
    return emitted, result.accept_length


def assert_fits(counts: np.ndarray, probabilities: np.ndarray) -> None:
    assert counts[probabilities == 0].sum() == 0, "a token that the filters drop was drawn"
    order = np.argsort(-probabilities)
    expected, counts = probabilities[order] * counts.sum(), counts[order]
    usual = max(1, int((expected >= 10).sum()) - 1)  # rare cells go into the last one
    cells = [np.append(part[:usual], part[usual:].sum()) for part in (counts, expected)]
    assert chisquare(*cells).pvalue > 1e-3


@pytest.mark.parametrize(("shape", "params"), CASES, ids=str)
def test_one_token_and_two_jointly_follow_the_target_exactly(shape, params):
    tree = TREES[shape]
    counts = np.zeros((VOCAB, VOCAB + 1), np.int64)  # the last column: no second token
    for start in range(0, NUM_DRAWS, BATCH):
        emitted, _ = draw(tree, start, BATCH, params)
        second = emitted[:, 1] if emitted.shape[1] > 1 else np.full(BATCH, -1)
        np.add.at(counts, (emitted[:, 0], second), 1)
    law = exact_distribution(int(tree.tokens[0]), **params)
    assert_fits(counts.sum(1), law)
    children = tree.tokens[1:][tree.parents[1:] == 0]
    others = np.setdiff1d(np.arange(VOCAB), children)
    assert counts[children, -1].sum() == counts[others, :-1].sum() == 0
    joint = np.array([law[v] * exact_distribution(v, **params) for v in children]).reshape(-1)
    assert_fits(
        np.concatenate([counts[children, :-1].ravel(), counts[others, -1]]), np.concatenate([joint, law[others]])
    )


@pytest.mark.parametrize("params", FILTERS, ids=str)
def test_a_seed_gives_the_same_tokens_with_chain_tree_and_no_draft(params):
    plain, chain, tree = (draw(shape, 0, 2000, params)[0] for shape in TREES.values())
    assert (plain[:, 0] == chain[:, 0]).all()
    assert (plain[:, 0] == tree[:, 0]).all()
    both = (chain[:, : tree.shape[1]] >= 0) & (tree >= 0)
    assert both.sum() > 2000
    assert (chain[:, : tree.shape[1]] == tree)[both].all()


def test_a_request_draws_the_same_in_any_batch():
    rng = np.random.default_rng(0)
    logits = torch.randn((40, 6000), generator=torch.Generator().manual_seed(1)) * 4
    trees = tree_batch(DraftTree.single(0), 40)
    params = [
        SamplingParams(
            temperature=float(rng.choice([0.0, 0.7, 1.0])),
            top_k=int(rng.choice([0, 3, 40, 2000])),
            top_p=float(rng.choice([1.0, 0.9, 0.3])),
            min_p=float(rng.choice([0.0, 0.1])),
            seed=i,
        )
        for i in range(40)
    ]
    together = ReferenceOps().start_walk(logits, trees, sampling_batch(params)).result().verified_id
    one = tree_batch(DraftTree.single(0), 1)
    alone = [
        ReferenceOps().start_walk(logits[i : i + 1], one, sampling_batch(params[i : i + 1])).result().verified_id[0]
        for i in range(40)
    ]
    assert together.tolist() == alone


@pytest.mark.parametrize(
    "params", [{}, {"top_k": 2000}, {"top_p": 0.97}, {"top_k": 3000, "top_p": 0.8}, {"min_p": 0.01}], ids=str
)
def test_a_wide_vocabulary_draws_the_argmax_of_logit_plus_noise_over_what_the_filters_leave(params):
    """Few candidates, sparse noise and the full sort are shortcuts: the plain definition gives the same token."""
    ops = ReferenceOps()
    logits = torch.randn((30, 5000), generator=torch.Generator().manual_seed(2)) * 3
    sampling = sampling_batch([SamplingParams(temperature=0.9, seed=i, **params) for i in range(30)])
    drawn = ops.start_walk(logits, tree_batch(DraftTree.single(0), 30), sampling).result().verified_id
    noise = ops.gumbel(sampling.seed, np.full(30, 21), torch.arange(5000)).double()
    scaled = logits.double() / 0.9
    order = torch.sort(scaled, descending=True, stable=True).indices
    for row in range(30):
        kept = order[row][: params.get("top_k", 5000)]
        weight = torch.softmax(scaled[row][kept], 0)
        kept = kept[weight.cumsum(0) - weight < params.get("top_p", 1.0)]
        kept = kept[scaled[row][kept] >= scaled[row].max() + np.log(params.get("min_p", 0.0) or 1e-300)]
        assert drawn[row] == kept[(scaled[row] + noise[row])[kept].argmax()]


def test_greedy_ties_go_to_the_lowest_id():
    logits = torch.zeros(2, 50)
    logits[1, [7, 31]] = 1.0
    sampling = sampling_batch([SamplingParams()] * 2)
    result = ReferenceOps().start_walk(logits, tree_batch(DraftTree.single(0), 2), sampling).result()
    assert result.verified_id.tolist() == [0, 7]


def test_top_k_one_is_greedy_even_where_logits_tie():
    logits = torch.zeros(200, 3000)
    sampling = sampling_batch([SamplingParams(temperature=5.0, top_k=1, seed=s) for s in range(200)])
    result = ReferenceOps().start_walk(logits, tree_batch(DraftTree.single(0), 200), sampling).result()
    assert not result.verified_id.any()


@pytest.mark.parametrize("params", [{"temperature": 1e-30}, {"temperature": 1e-60}, {"temperature": 1, "top_p": 1e-60}])
def test_a_tiny_temperature_or_top_p_is_nearly_greedy(params):
    logits = torch.randn((1, 300), generator=torch.Generator().manual_seed(3))
    sampling = sampling_batch([SamplingParams(**params, seed=4)])
    result = ReferenceOps().start_walk(logits, tree_batch(DraftTree.single(0), 1), sampling).result()
    assert result.verified_id[0] == logits.argmax()


def test_the_walk_follows_drawn_tokens_and_returns_flat_nodes():
    tree = DraftTree(np.array([0, 3, 7, 1, 2, 3, 5]), np.array([-1, 0, 0, 0, 1, 1, 2]))
    logits = torch.zeros(14, VOCAB)
    for node, token in {0: 3, 1: 3, 5: 8, 7: 9}.items():
        logits[node, token] = 1.0
    result = ReferenceOps().start_walk(logits, tree_batch(tree, 2), sampling_batch([SamplingParams()] * 2)).result()
    assert result.accept_length.tolist() == [2, 0]
    assert result.accepted_indices.tolist() == [0, 1, 5, 7]
    assert result.verified_id.tolist() == [3, 3, 8, 9]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_masked_tokens_are_never_drawn_and_bias_counts_at_its_own_node(temperature):
    chain = DraftTree.chain([0, 40, 41])
    logits = torch.zeros(3, 70)
    allowed = torch.zeros((3, 70), dtype=torch.bool)
    allowed[0, 40] = allowed[1, [41, 69]] = allowed[2, :] = True
    words = torch.zeros((3, 3), dtype=torch.int64)
    for word in range(3):
        for bit in range(min(32, 70 - 32 * word)):
            words[:, word] |= allowed[:, 32 * word + bit].long() << bit
    base = sampling_batch([SamplingParams(temperature=temperature, seed=11)])
    sampling = SamplingBatch(
        base.seed,
        base.temperature,
        base.top_k,
        base.top_p,
        base.min_p,
        token_bitmask=words.to(torch.int32),
        bias_indptr=np.array([0, 1, 2, 4], np.int32),
        bias_token=np.array([3, 69, 5, 5], np.int32),
        bias_value=np.array([1e4, -1e4, 50.0, 50.0], np.float32),
    )
    before = logits.clone()
    result = ReferenceOps().start_walk(logits, tree_batch(chain, 1), sampling).result()
    assert result.verified_id.tolist() == [40, 41, 5]
    assert torch.equal(logits, before)


def test_no_request_at_all_is_no_error():
    trees = tree_batch(DraftTree.single(0), 0)
    result = ReferenceOps().start_walk(torch.zeros(0, 10), trees, sampling_batch([])).result()
    assert [len(result.accept_length), len(result.verified_id)] == [0, 0]
