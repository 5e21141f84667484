"""What a verify emits is distributed as the target: the exact distribution is computed here, independently.

Draws vary by seed alone. A tree must not change the distribution, whatever its tokens are.
"""

import numpy as np
import pytest
import torch

from engine.sampling import sampling_batch
from kernels.ops import SamplingBatch
from kernels.reference.ops import ReferenceOps
from paceline.tree import DraftTree
from paceline.types import SamplingParams
from tests.support.toy_target import CASES, FILTERS, TREES, VOCAB, assert_follows_the_target, draw, tree_batch


@pytest.mark.parametrize(("shape", "params"), CASES, ids=str)
def test_one_token_and_two_jointly_follow_the_target_exactly(shape, params):
    assert_follows_the_target(ReferenceOps(), TREES[shape], params)


@pytest.mark.parametrize("params", FILTERS, ids=str)
def test_a_seed_gives_the_same_tokens_with_chain_tree_and_no_draft(params):
    plain, chain, tree = (draw(ReferenceOps(), shape, 2000, params) for shape in TREES.values())
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
