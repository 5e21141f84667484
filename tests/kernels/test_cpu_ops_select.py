"""The C kernel of top-k and log-probabilities against the reference ops."""

from __future__ import annotations

import pytest
import torch

from kernels.cpu_ops.native import NativeKernels
from kernels.cpu_ops.ops import CpuOps
from kernels.reference.ops import ReferenceOps

_native = pytest.importorskip("kernels.cpu_ops._native", reason="the C extension is not built here")

REFERENCE = ReferenceOps()


@pytest.fixture(params=_native.isas())
def ops(request: pytest.FixtureRequest) -> CpuOps:
    return CpuOps(NativeKernels(_native, isa=request.param))


def _scores(rows: int, width: int) -> torch.Tensor:
    """Full of ties."""
    return (torch.randn(rows, width, generator=torch.Generator().manual_seed(width)) * 3).round(decimals=1)


@pytest.mark.parametrize(("rows", "width", "k"), [(1, 7, 7), (3, 4096, 3), (5, 1000, 256), (4, 33, 5), (2, 31, 1)])
def test_the_largest_come_first_and_ties_go_to_the_lowest_index(ops: CpuOps, rows: int, width: int, k: int) -> None:
    scores = _scores(rows, width)
    values, indices = ops.top_k(scores, k)
    expected_values, expected_indices = REFERENCE.top_k(scores, k)
    assert torch.equal(values, expected_values)
    assert torch.equal(indices, expected_indices)


@pytest.mark.parametrize(("rows", "width", "k"), [(1, 7, 7), (3, 4096, 10), (2, 31, 1)])
def test_log_probabilities_are_of_the_whole_row(ops: CpuOps, rows: int, width: int, k: int) -> None:
    scores = _scores(rows, width)
    values, indices = ops.top_k_log_probs(scores, k)
    expected_values, expected_indices = REFERENCE.top_k_log_probs(scores, k)
    torch.testing.assert_close(values, expected_values, rtol=1e-6, atol=2e-6)
    assert torch.equal(indices, expected_indices)


def test_scores_of_minus_infinity_have_no_probability(ops: CpuOps) -> None:
    scores = torch.full((1, 40), -torch.inf)
    scores[0, 35] = 2.0
    values, indices = ops.top_k_log_probs(scores, 3)
    assert indices.tolist() == [[35, 0, 1]]
    assert values[0, 0] == 0 and values[0, 1] == -torch.inf
