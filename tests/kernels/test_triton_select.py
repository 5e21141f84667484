"""Triton's top-k and noise against the reference's. Without a GPU the kernels are interpreted, at small odd sizes."""

import numpy as np
import pytest
import torch

from kernels.reference import select as reference
from kernels.reference.ops import ReferenceOps
from kernels.triton_ops import select
from kernels.triton_ops.ops import TritonOps
from kernels.triton_ops.philox import gumbel_rows
from tests.conftest import HAS_CUDA

DEVICE = "cuda" if HAS_CUDA else "cpu"


def scores_of(rows: int, columns: int) -> torch.Tensor:
    """With many ties, a row of equals, and one of mostly -inf."""
    scores = torch.randint(-40, 40, (rows, columns), generator=torch.Generator().manual_seed(columns)).float() / 8
    scores[1] = 2.0
    scores[2, columns // 2 :] = float("-inf")
    scores[0, ::3] *= -1.0  # zeros of both signs
    return scores


@pytest.mark.parametrize(("columns", "k"), [(7, 1), (50, 7), (5003, 10), (4999, 16), (60, 40), (2500, 20)])
def test_top_k_equals_the_reference_ties_included(columns, k):
    scores = scores_of(3, columns)
    values, indices = select.top_k(scores.to(DEVICE), k)
    wanted_values, wanted = reference.top_k(scores, k)
    assert torch.equal(indices.cpu(), wanted)
    assert torch.equal(values.cpu(), wanted_values)


@pytest.mark.parametrize(("columns", "k"), [(60, 5), (5003, 10)])
def test_log_probs_are_of_the_whole_row(columns, k):
    scores = scores_of(3, columns)
    values, indices = select.top_k_log_probs(scores.to(DEVICE), k)
    wanted_values, wanted = ReferenceOps().top_k_log_probs(scores, k)
    assert torch.equal(indices.cpu(), wanted)
    torch.testing.assert_close(values.cpu(), wanted_values, rtol=1e-5, atol=2e-6)


def test_rows_of_a_wider_tensor_may_be_selected_from():
    wide = scores_of(4, 90).to(DEVICE)
    values, indices = select.top_k(wide[:, 20:61], 3)
    wanted_values, wanted = reference.top_k(wide[:, 20:61].cpu(), 3)
    assert torch.equal(indices.cpu(), wanted) and torch.equal(values.cpu(), wanted_values)


def test_noise_of_device_seeds_equals_the_reference_up_to_the_logarithms_last_bits():
    seeds = np.array([0, 1, 2**63, 2**64 - 1], np.uint64)
    positions = np.array([0, 7, 2**31 - 1, 100_000], np.int32)
    ids = torch.randint(0, 150_000, (4, 300), generator=torch.Generator().manual_seed(1))
    got = gumbel_rows(
        torch.from_numpy(seeds.view(np.int64)).to(DEVICE), torch.from_numpy(positions).to(DEVICE), ids.to(DEVICE)
    )
    torch.testing.assert_close(got.cpu(), ReferenceOps().gumbel(seeds, positions, ids), rtol=1e-6, atol=1e-6)


def test_the_backend_takes_seeds_from_the_host_and_any_k():
    ops, reference_ops = TritonOps(DEVICE), ReferenceOps()
    seeds, positions = np.array([5, 2**64 - 6], np.uint64), np.array([3, 4], np.int32)
    ids = torch.arange(20, 57)
    got = ops.gumbel(seeds, positions, ids.to(DEVICE))
    torch.testing.assert_close(got.cpu(), reference_ops.gumbel(seeds, positions, ids), rtol=1e-6, atol=1e-6)
    scores = scores_of(3, 400)
    assert torch.equal(ops.top_k(scores.to(DEVICE), 300)[1].cpu(), reference_ops.top_k(scores, 300)[1])


def test_all_rows_may_share_one_list_of_ids():
    seeds, positions = np.array([5, 6], np.uint64), np.array([3, 4], np.int64)
    ids = torch.arange(33, 70, device=DEVICE)
    got = gumbel_rows(
        torch.from_numpy(seeds.view(np.int64)).to(DEVICE), torch.from_numpy(positions).to(DEVICE), ids.expand(2, -1)
    )
    torch.testing.assert_close(got.cpu(), ReferenceOps().gumbel(seeds, positions, ids), rtol=1e-6, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "columns", "k"), [(1, 16384, 10), (2560, 16384, 10), (256, 32000, 16), (64, 32000, 256)]
)
def test_top_k_equals_the_reference_at_real_sizes(rows, columns, k):
    scores = torch.randn((rows, columns), device="cuda").mul_(40).round_().div_(8)
    values, indices = select.top_k_log_probs(scores, k)
    order = torch.sort(scores, dim=1, descending=True, stable=True)
    assert torch.equal(indices, order.indices[:, :k])
    wanted = order.values[:, :k] - scores.double().logsumexp(1, keepdim=True).float()
    torch.testing.assert_close(values, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
def test_noise_stays_equal_in_a_replayed_graph():
    seeds, positions = torch.tensor([3, -1], device="cuda"), torch.tensor([5, 9], device="cuda", dtype=torch.int32)
    ids = torch.arange(1000, device="cuda").expand(2, -1)
    gumbel_rows(seeds, positions, ids)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        noise = gumbel_rows(seeds, positions, ids)
        best, _ = select.top_k_log_probs(noise, 8)
    seeds.fill_(11)
    graph.replay()
    wanted = ReferenceOps().gumbel(np.array([11, 11], np.uint64), positions.cpu().numpy(), torch.arange(1000))
    torch.testing.assert_close(noise.cpu(), wanted, rtol=1e-6, atol=1e-6)
    wanted_best, _ = ReferenceOps().top_k_log_probs(wanted, 8)
    torch.testing.assert_close(best.cpu(), wanted_best, rtol=1e-5, atol=1e-5)
