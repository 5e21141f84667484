"""Triton's draws and walks against the reference's. Without a GPU the kernels are interpreted, at small odd sizes."""

import numpy as np
import pytest
import torch

from engine.sampling import sampling_batch
from kernels.ops import Ops, SamplingBatch, TreeBatch, WalkLimits, WalkResult
from kernels.reference.ops import ReferenceOps
from kernels.triton_ops.ops import TritonOps
from paceline.tree import DraftTree
from paceline.types import SamplingParams
from tests.conftest import HAS_CUDA
from tests.support.toy_target import CASES, TREES, assert_follows_the_target, tree_batch

DEVICE = "cuda" if HAS_CUDA else "cpu"
MIXED = [
    {},
    {"temperature": 0.8},
    {"temperature": 1.0, "top_k": 3},
    {"temperature": 0.7, "top_p": 0.4},
    {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 2.0, "top_k": 700, "top_p": 0.8},
    {"temperature": 1.0, "min_p": 0.3},
    {"temperature": 1.0, "top_k": 10**6},
]
MIXED_PARAMS = [SamplingParams(**params, seed=i + 1) for i, params in enumerate(MIXED)]


@pytest.fixture(scope="module")
def ops() -> TritonOps:
    return TritonOps(DEVICE)


def walk(ops: Ops, logits: torch.Tensor, trees: TreeBatch, sampling: SamplingBatch) -> WalkResult:
    return ops.start_walk(logits.to(ops.device), trees, sampling).result()


def assert_equal(got: WalkResult, wanted: WalkResult) -> None:
    for name in ("verified_id", "accepted_indices", "accept_length"):
        assert getattr(got, name).tolist() == getattr(wanted, name).tolist()
        assert getattr(got, name).dtype == np.int32


def test_a_mixed_batch_draws_the_reference_tokens(ops):
    logits = torch.randn((8, 1301), generator=torch.Generator().manual_seed(0)) * 3
    trees, sampling = tree_batch(DraftTree.single(0), 8), sampling_batch(MIXED_PARAMS)
    assert_equal(walk(ops, logits, trees, sampling), walk(ReferenceOps(), logits, trees, sampling))


def test_ties_across_the_ends_of_the_filters_go_to_the_lowest_ids(ops):
    logits = torch.zeros(8, 1301)
    logits[:, 600:900] = 1.0
    trees, sampling = tree_batch(DraftTree.single(0), 8), sampling_batch(MIXED_PARAMS)
    assert_equal(walk(ops, logits, trees, sampling), walk(ReferenceOps(), logits, trees, sampling))


def test_top_k_one_is_greedy_even_where_all_logits_tie(ops):
    params = [SamplingParams(temperature=5.0, top_k=1, seed=seed) for seed in range(2)]
    got = walk(ops, torch.zeros(2, 1100), tree_batch(DraftTree.single(0), 2), sampling_batch(params))
    assert got.verified_id.tolist() == [0, 0]


@pytest.mark.parametrize("params", [{"temperature": 1e-30}, {"temperature": 1, "top_p": 1e-60}])
def test_a_tiny_temperature_or_top_p_is_nearly_greedy(ops, params):
    logits = torch.randn((1, 300), generator=torch.Generator().manual_seed(3))
    sampling = sampling_batch([SamplingParams(**params, seed=4)])
    got = walk(ops, logits, tree_batch(DraftTree.single(0), 1), sampling)
    assert got.verified_id.tolist() == [logits.argmax()]


def test_the_walk_follows_tokens_through_ragged_trees(ops):
    tree = DraftTree(np.array([0, 3, 7, 1, 2, 3, 5]), np.array([-1, 0, 0, 0, 1, 1, 2]))
    trees = TreeBatch(
        node_indptr=np.array([0, 7, 8, 15], np.int32),
        tokens=np.concatenate([tree.tokens, [4], tree.tokens]),
        positions=np.arange(15, dtype=np.int32),
        first_child=np.concatenate([tree.first_child(), [-1], tree.first_child()]),
        next_sibling=np.concatenate([tree.next_sibling(), [-1], tree.next_sibling()]),
    )
    logits = torch.zeros(15, 12)
    for node, token in {0: 3, 1: 3, 5: 8, 7: 9, 8: 1}.items():
        logits[node, token] = 1.0
    got = walk(ops, logits, trees, sampling_batch([SamplingParams()] * 3))
    assert got.accept_length.tolist() == [2, 0, 1]
    assert got.accepted_indices.tolist() == [0, 1, 5, 7, 8, 11]
    assert got.verified_id.tolist() == [3, 3, 8, 9, 1, 0]


@pytest.mark.parametrize("params", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 3}], ids=str)
def test_masked_tokens_are_never_drawn_and_bias_counts_at_its_own_node(ops, params):
    chain = DraftTree.chain([0, 40, 41])
    allowed = torch.zeros((3, 96), dtype=torch.bool)
    allowed[0, 40] = allowed[1, [41, 69]] = allowed[2, :] = True
    words = (allowed.view(3, 3, 32).long() << torch.arange(32)).sum(2).to(torch.int32)
    base = sampling_batch([SamplingParams(**params, seed=11)])
    sampling = SamplingBatch(
        base.seed,
        base.temperature,
        base.top_k,
        base.top_p,
        base.min_p,
        token_bitmask=words.to(DEVICE),
        bias_indptr=np.array([0, 1, 2, 4], np.int32),
        bias_token=np.array([3, 69, 5, 5], np.int32),
        bias_value=np.array([1e4, -1e4, 50.0, 50.0], np.float32),
    )
    logits = torch.zeros(3, 70, device=DEVICE)
    assert walk(ops, logits, tree_batch(chain, 1), sampling).verified_id.tolist() == [40, 41, 5]
    assert not logits.any()


def test_a_larger_walk_may_follow_a_smaller_one(ops):
    logits = torch.randn((20, 40), generator=torch.Generator().manual_seed(5))
    for num_requests in (2, 20, 3):
        trees = tree_batch(DraftTree.single(0), num_requests)
        sampling = sampling_batch([SamplingParams()] * num_requests)
        assert walk(ops, logits, trees, sampling).verified_id.tolist() == logits[:num_requests].argmax(1).tolist()


def test_logits_that_are_no_numbers_still_give_a_token_of_the_vocabulary(ops):
    logits = torch.full((8, 530), float("nan"))
    logits[:, 1] = float("-inf")
    got = walk(ops, logits, tree_batch(DraftTree.single(0), 8), sampling_batch(MIXED_PARAMS))
    assert ((got.verified_id >= 0) & (got.verified_id < 530)).all()


def test_no_request_at_all_is_no_error(ops):
    got = walk(ops, torch.zeros(0, 10), tree_batch(DraftTree.single(0), 0), sampling_batch([]))
    assert [len(got.accept_length), len(got.verified_id)] == [0, 0]


def test_a_prepared_backend_keeps_its_buffers():
    ops = TritonOps(DEVICE)
    ops.prepare_walk(WalkLimits(max_nodes=12, max_requests=4, vocab_size=90))
    logits = torch.randn((12, 90), generator=torch.Generator().manual_seed(6))
    trees, sampling = tree_batch(DraftTree.chain([1, 2, 3]), 4), sampling_batch(MIXED_PARAMS[:4])
    assert_equal(walk(ops, logits, trees, sampling), walk(ReferenceOps(), logits, trees, sampling))


@pytest.mark.parametrize("backend", [TritonOps, ReferenceOps])
def test_a_known_walk_is_read_as_what_it_came_to(backend):
    ops = backend(DEVICE)
    trees, params = tree_batch(DraftTree.chain([1, 2, 3]), 1), sampling_batch(MIXED_PARAMS[:1])
    logits = torch.randn((3, 90), generator=torch.Generator().manual_seed(6))
    for wanted in (
        WalkResult(*(np.array(part, np.int32) for part in ([1], [0, 2], [7, 89]))),
        walk(ops, logits, trees, params),
    ):
        pending = ops.known_walk(trees, wanted)
        assert pending.is_ready()
        assert_equal(pending.result(), wanted)


def test_a_vocabulary_past_what_sums_hold_is_refused_by_its_size(ops):
    with pytest.raises(ValueError, match=r"262145 tokens.*at most 262144"):
        ops.prepare_walk(WalkLimits(max_nodes=1, max_requests=1, vocab_size=2**18 + 1))


@pytest.mark.gpu
@pytest.mark.parametrize(("shape", "params"), CASES, ids=str)
def test_the_gpu_follows_the_target_exactly(ops, shape, params):
    assert_follows_the_target(ops, TREES[shape], params)


@pytest.mark.gpu
@pytest.mark.parametrize("scale", [1.0, 4.0, 10.0])
@pytest.mark.parametrize("vocab_size", [49_152, 128_256])
def test_the_gpu_draws_the_reference_tokens_at_real_sizes(ops, vocab_size, scale):
    rng = np.random.default_rng(int(scale))
    logits = torch.randn((64, vocab_size), generator=torch.Generator().manual_seed(7)) * scale
    logits[::5] = (logits[::5] * 4).round() / 4
    params = [
        SamplingParams(
            temperature=float(rng.choice([0.0, 0.6, 1.0])),
            top_k=int(rng.choice([0, 1, 20, 1000])),
            top_p=float(rng.choice([1.0, 0.95, 0.5])),
            min_p=float(rng.choice([0.0, 0.05])),
            seed=i,
        )
        for i in range(64)
    ]
    trees, sampling = tree_batch(DraftTree.single(0), 64), sampling_batch(params)
    assert_equal(walk(ops, logits, trees, sampling), walk(ReferenceOps(), logits, trees, sampling))


@pytest.mark.gpu
def test_the_gpu_walks_256_random_trees_like_the_reference(ops):
    rng = np.random.default_rng(1)
    trees = [random_tree(rng) for _ in range(256)]
    sizes = [tree.num_nodes for tree in trees]
    batch = TreeBatch(
        node_indptr=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32),
        tokens=np.concatenate([tree.tokens for tree in trees]),
        positions=np.concatenate([30 + tree.depths() for tree in trees]),
        first_child=np.concatenate([tree.first_child() for tree in trees]),
        next_sibling=np.concatenate([tree.next_sibling() for tree in trees]),
    )
    logits = torch.randn((sum(sizes), 50), generator=torch.Generator().manual_seed(8)) * 2
    for first, tree in zip(batch.node_indptr, trees, strict=False):  # children are likely, so that paths are long
        logits[first + tree.parents[1:], tree.tokens[1:]] += 6
    sampling = sampling_batch([MIXED_PARAMS[i % len(MIXED)] for i in range(256)])
    got = walk(ops, logits, batch, sampling)
    assert_equal(got, walk(ReferenceOps(), logits, batch, sampling))
    assert got.accept_length.max() >= 3


def random_tree(rng: np.random.Generator) -> DraftTree:
    """Up to 64 nodes, few children each."""
    size = int(rng.integers(1, 65))
    parents = [-1, *(int(rng.integers(max(0, node - 12), node)) for node in range(1, size))]
    free = {node: list(rng.permutation(50)) for node in range(-1, size)}
    return DraftTree(np.array([free[parent].pop() for parent in parents]), np.array(parents))
