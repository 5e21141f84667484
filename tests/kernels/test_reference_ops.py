"""The reference ops against their formulas, written out plainly."""

import numpy as np
import pytest
import torch

from kernels.backends import load_ops
from kernels.ops import AttentionBatch
from kernels.reference.ops import ReferenceOps
from paceline.tree import DraftTree

PAGE_SIZE, KV_HEADS, HEAD_DIM = 4, 2, 8
GEN = torch.Generator().manual_seed(0)


def attend_plainly(q, k, v, allowed):
    """q [heads, d], k and v [kv, kv_heads, d], allowed bool [kv] -> [heads, d], in fp64."""
    out = torch.empty(q.shape, dtype=torch.float64)
    folds = q.shape[0] // k.shape[1]
    for head in range(q.shape[0]):
        kv_head = head // folds
        scores = k[:, kv_head].double() @ q[head].double() * q.shape[1] ** -0.5
        out[head] = torch.softmax(scores.masked_fill(~allowed, float("-inf")), 0) @ v[:, kv_head].double()
    return out


def ragged_batch(requests, *, batch_invariant=False):
    """requests: (prefix_len, local_len, q_len, tree or None); pages are dealt out of order."""
    pages_of = [-(-(prefix + local) // PAGE_SIZE) for prefix, local, _, _ in requests]
    page_ids = np.random.default_rng(1).permutation(sum(pages_of) + 5)[: sum(pages_of)]
    ancestors = [
        np.zeros(q_len, np.uint64) if tree is None else tree.ancestors()[-q_len:] for _, _, q_len, tree in requests
    ]
    return AttentionBatch(
        q_indptr=np.cumsum([0, *(r[2] for r in requests)]).astype(np.int32),
        prefix_len=np.array([r[0] for r in requests], np.int32),
        local_len=np.array([r[1] for r in requests], np.int32),
        page_indptr=np.cumsum([0, *pages_of]).astype(np.int32),
        page_ids=page_ids.astype(np.int32),
        is_causal=np.array([r[3] is None for r in requests]),
        ancestors=np.concatenate(ancestors),
        page_size=PAGE_SIZE,
        batch_invariant=batch_invariant,
    )


def expected_attention(batch, q, k_cache, v_cache):
    out = torch.empty(q.shape, dtype=torch.float64)
    for request in range(len(batch.prefix_len)):
        prefix, local = int(batch.prefix_len[request]), int(batch.local_len[request])
        pages = batch.page_ids[batch.page_indptr[request] :]
        slots = [int(pages[p // PAGE_SIZE]) * PAGE_SIZE + p % PAGE_SIZE for p in range(prefix + local)]
        start, stop = batch.q_indptr[request], batch.q_indptr[request + 1]
        for row in range(start, stop):
            own = local - (stop - start) + (row - start)
            if batch.is_causal[request]:
                seen = [j <= own for j in range(local)]
            else:
                seen = [bool(int(batch.ancestors[row]) >> j & 1) for j in range(local)]
            allowed = torch.tensor([True] * prefix + seen)
            out[row] = attend_plainly(q[row], k_cache[slots], v_cache[slots], allowed)
    return out


def random_tree(num_nodes):
    rng = np.random.default_rng(num_nodes)
    return DraftTree(np.arange(num_nodes), np.array([-1] + [int(rng.integers(i)) for i in range(1, num_nodes)]))


RAGGED = [
    (0, 70, 70, None),  # a whole prompt
    (13, 66, 66, None),  # a prompt chunk past a prefix
    (9, 5, 5, None),  # a draft's extend
    (3, 8, 2, None),  # causal rows after local positions that others wrote
    (21, 1, 1, DraftTree.single(3)),  # plain decoding
    (6, 7, 7, random_tree(7)),
    (0, 64, 64, random_tree(64)),
    (90, 12, 4, random_tree(12)),  # a draft's beam: only the last rows of the tree run
    (5, 0, 0, None),  # takes part with no row
]


@pytest.mark.parametrize("num_heads", [2, 6])
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_a_ragged_step_attends_as_each_row_alone_would(num_heads, batch_invariant):
    batch = ragged_batch(RAGGED, batch_invariant=batch_invariant)
    num_slots = (int(batch.page_ids.max()) + 1) * PAGE_SIZE
    k_cache, v_cache = torch.randn((2, num_slots, KV_HEADS, HEAD_DIM), generator=GEN)
    q = torch.randn((int(batch.q_indptr[-1]), num_heads, HEAD_DIM), generator=GEN)
    plan = ReferenceOps().plan_attention(batch)
    expected = expected_attention(batch, q, k_cache, v_cache)
    for _ in range(2):
        torch.testing.assert_close(plan.run(q, k_cache, v_cache).double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("request_", RAGGED[:-1])
def test_one_request_alone_attends_right(request_):
    batch = ragged_batch([request_])
    num_slots = (int(batch.page_ids.max()) + 1) * PAGE_SIZE
    k_cache, v_cache = torch.randn((2, num_slots, KV_HEADS, HEAD_DIM), generator=GEN)
    q = torch.randn((request_[2], 6, HEAD_DIM), generator=GEN)
    out = ReferenceOps().plan_attention(batch).run(q, k_cache, v_cache)
    torch.testing.assert_close(out.double(), expected_attention(batch, q, k_cache, v_cache), rtol=1e-4, atol=1e-5)


def test_rows_that_were_never_written_do_not_leak_into_a_padded_batch():
    batch = ragged_batch([(2, 1, 1, DraftTree.single(0)), (30, 3, 3, DraftTree.chain([1, 2, 3]))])
    num_slots = (int(batch.page_ids.max()) + 1) * PAGE_SIZE
    k_cache = torch.full((num_slots, KV_HEADS, HEAD_DIM), float("nan"))
    for request, length in enumerate((3, 33)):
        pages = batch.page_ids[batch.page_indptr[request] :]
        for p in range(length):
            k_cache[int(pages[p // PAGE_SIZE]) * PAGE_SIZE + p % PAGE_SIZE] = 1.0
    out = ReferenceOps().plan_attention(batch).run(torch.ones(4, 2, HEAD_DIM), k_cache, k_cache)
    assert torch.allclose(out, torch.ones_like(out))


def test_rms_norm_keeps_statistics_in_fp32():
    x, weight = torch.randn(5, 64, generator=GEN).bfloat16() * 100, torch.rand(64, generator=GEN).bfloat16()
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    out = ReferenceOps().rms_norm(x, weight, 1e-5)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), expected, rtol=2e-2, atol=1e-3)


def test_add_rms_norm_updates_the_residual():
    ops = ReferenceOps()
    x, residual = torch.randn(2, 3, 16, generator=GEN)
    weight, total = torch.rand(16, generator=GEN), x + residual
    out = ops.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(residual, total)
    assert torch.equal(out, ops.rms_norm(total, weight, 1e-5))


def test_silu_mul_takes_the_gate_first():
    gate, up = torch.randn(2, 3, 16, generator=GEN)
    out = ReferenceOps().silu_mul(torch.cat((gate, up), dim=1))
    torch.testing.assert_close(out, gate * torch.sigmoid(gate) * up)


def test_rope_rotates_by_halves_in_place():
    q, k = torch.randn(3, 4, 8, generator=GEN), torch.randn(3, 2, 8, generator=GEN)
    angle = torch.rand(3, 4, generator=GEN)
    before = q.clone()
    ReferenceOps().rope(q, k, torch.cat((angle.cos(), angle.sin()), dim=1))
    pair = torch.complex(before[..., :4], before[..., 4:]) * torch.polar(torch.ones(3, 1, 4), angle[:, None])
    torch.testing.assert_close(q, torch.cat((pair.real, pair.imag), dim=-1))


def test_moves_read_all_sources_before_they_write():
    pool = torch.arange(6.0).view(6, 1)
    ReferenceOps().move_rows([pool], torch.tensor([1, 2, 3]), torch.tensor([2, 3, 1]))
    assert pool.flatten().tolist() == [0, 3, 1, 2, 4, 5]


def test_append_kv_writes_each_row_to_its_slot():
    k, v = torch.randn(2, 2, 3, 4, generator=GEN)
    k_cache, v_cache = torch.zeros(2, 5, 3, 4)
    ReferenceOps().append_kv(k, v, torch.tensor([4, 1]), k_cache, v_cache)
    assert torch.equal(k_cache[[4, 1]], k)
    assert torch.equal(v_cache[[4, 1]], v)
    assert not k_cache[[0, 2, 3]].any()


@pytest.mark.parametrize("k", [1, 3, 4, 7, 50])
def test_top_k_breaks_ties_towards_the_lowest_index(k):
    scores = torch.randint(0, 5, (40, 50), generator=GEN).float()
    scores[3] = 2.0
    scores[4, 10:] = float("-inf")
    values, indices = ReferenceOps().top_k(scores, k)
    for row in range(40):
        order = sorted(range(50), key=lambda i: (-scores[row, i].item(), i))[:k]
        assert indices[row].tolist() == order
        assert torch.equal(values[row], scores[row, order])


def test_top_k_log_probs_are_of_the_whole_row():
    scores = torch.randn(9, 50, generator=GEN)
    values, indices = ReferenceOps().top_k_log_probs(scores, 3)
    assert torch.equal(indices, ReferenceOps().top_k(scores, 3)[1])
    torch.testing.assert_close(values, scores.log_softmax(1).gather(1, indices))


def test_an_unknown_backend_is_named_with_the_known_ones():
    with pytest.raises(ValueError, match="'cuda'; it must be one of auto, cpu, flashinfer, reference, triton"):
        load_ops("cuda", "cpu")


def test_the_cpu_backend_does_not_run_elsewhere():
    with pytest.raises(ValueError, match="does not run on meta"):
        load_ops("cpu", "meta")


@pytest.mark.parametrize(("name", "device", "got"), [("auto", "cpu", "cpu"), ("auto", "meta", "reference")])
def test_auto_takes_what_fits_the_device(name, device, got):
    assert load_ops(name, device).name == got
