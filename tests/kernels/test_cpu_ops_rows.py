"""The C kernels of norms, activation, rotary positions and KV appends against the reference ops."""

from __future__ import annotations

import pytest
import torch

from kernels.cpu_ops.native import NativeKernels
from kernels.cpu_ops.ops import CpuOps
from kernels.reference.ops import ReferenceOps

_native = pytest.importorskip("kernels.cpu_ops._native", reason="the C extension is not built here")

REFERENCE = ReferenceOps()
DTYPES = [torch.bfloat16, torch.float32]
SHAPES = [(1, 576), (3, 1), (7, 33), (16, 101), (70, 576)]


@pytest.fixture(params=_native.isas())
def ops(request: pytest.FixtureRequest) -> CpuOps:
    return CpuOps(NativeKernels(_native, isa=request.param))


def _random(*shape: int, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(*shape, generator=generator) * scale).to(dtype)


def _assert_rounded_alike(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal up to one rounding: sums run in another order, so that a value may fall on the other side."""
    assert got.dtype == expected.dtype
    one_ulp = 2**-7 if got.dtype == torch.bfloat16 else 3e-6
    torch.testing.assert_close(got.double(), expected.double(), rtol=one_ulp, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_rms_norm_equals_the_reference(ops: CpuOps, rows: int, width: int, dtype: torch.dtype) -> None:
    x, weight = _random(rows, width, dtype=dtype, scale=30.0), _random(width, dtype=dtype)
    _assert_rounded_alike(ops.rms_norm(x, weight, 1e-5), REFERENCE.rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_add_rms_norm_adds_into_the_residual(ops: CpuOps, rows: int, width: int, dtype: torch.dtype) -> None:
    x, residual = _random(rows, width, dtype=dtype), _random(rows, width + 1, dtype=dtype)[:, :-1].contiguous()
    weight, total = _random(width, dtype=dtype), x + residual
    out = ops.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(residual, total)
    assert torch.equal(out, ops.rms_norm(total, weight, 1e-5))


def test_per_head_norms_take_a_slice_of_the_projections(ops: CpuOps) -> None:
    heads = _random(5, 6, 32, dtype=torch.bfloat16)[:, 1:4]
    weight = _random(32, dtype=torch.bfloat16)
    _assert_rounded_alike(ops.rms_norm(heads, weight, 1e-6), REFERENCE.rms_norm(heads, weight, 1e-6))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_silu_mul_equals_the_reference(ops: CpuOps, rows: int, width: int, dtype: torch.dtype) -> None:
    gate_up = _random(rows, 2 * width, dtype=dtype, scale=4.0)
    _assert_rounded_alike(ops.silu_mul(gate_up), REFERENCE.silu_mul(gate_up))


def test_silu_mul_is_right_at_the_ends_of_the_range(ops: CpuOps) -> None:
    gate = torch.tensor([-200.0, -88.5, -87.0, -30.0, 0.0, 30.0, 88.5, 200.0, float("inf")])
    got = ops.silu_mul(torch.cat((gate, torch.ones(9)))[None])
    torch.testing.assert_close(got[0], torch.nn.functional.silu(gate), rtol=3e-6, atol=1e-30)
    assert torch.isnan(ops.silu_mul(torch.tensor([[float("nan"), 1.0]]))).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (2, 1, 6), (1, 1, 2), (4, 4, 80)])
def test_rope_rotates_slices_in_place(
    ops: CpuOps, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    rows = 5
    angle = torch.rand(rows, head_dim // 2, generator=torch.Generator().manual_seed(0)) * 100
    cos_sin = torch.cat((angle.cos(), angle.sin()), dim=1)
    qkv = _random(rows, heads + 2 * kv_heads, head_dim, dtype=dtype)
    expected = qkv.clone()
    sizes = [heads, kv_heads, kv_heads]
    REFERENCE.rope(*expected.split(sizes, dim=1)[:2], cos_sin)
    ops.rope(*qkv.split(sizes, dim=1)[:2], cos_sin)
    _assert_rounded_alike(qkv, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_append_kv_writes_each_row_to_its_slot(ops: CpuOps, dtype: torch.dtype) -> None:
    kv = _random(3, 4, 8, dtype=dtype)
    k_cache, v_cache = torch.zeros(2, 6, 2, 8, dtype=dtype)
    ops.append_kv(kv[:, :2], kv[:, 2:], torch.tensor([5, 0, 2]), k_cache, v_cache)
    assert torch.equal(k_cache[[5, 0, 2]], kv[:, :2])
    assert torch.equal(v_cache[[5, 0, 2]], kv[:, 2:])
    assert not k_cache[[1, 3, 4]].any()


@pytest.mark.parametrize("slot", [-1, 6])
def test_append_kv_refuses_a_slot_outside_the_cache_and_writes_nothing(ops: CpuOps, slot: int) -> None:
    kv, cache = torch.ones(2, 1, 8), torch.zeros(6, 1, 8)
    with pytest.raises(IndexError, match=f"slot {slot} of row 1"):
        ops.append_kv(kv, kv, torch.tensor([0, slot]), cache, cache)
    assert not cache.any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_rows_on_many_threads_equal_each_row_alone(ops: CpuOps, dtype: torch.dtype) -> None:
    x, weight = _random(200, 300, dtype=dtype), _random(300, dtype=dtype)
    normed, gated = ops.rms_norm(x, weight, 1e-5), ops.silu_mul(x)
    for row in range(0, 200, 37):
        assert torch.equal(ops.rms_norm(x[row : row + 1], weight, 1e-5), normed[row : row + 1])
        assert torch.equal(ops.silu_mul(x[row : row + 1]), gated[row : row + 1])


def test_logits_are_not_rounded_to_the_weights_dtype(ops: CpuOps) -> None:
    torch.manual_seed(8)
    x, weight = torch.randn(3, 64).bfloat16(), torch.randn(257, 64).bfloat16()
    exact = x.double() @ weight.double().T
    weight = ops.prepare_weight(weight)
    logits = ops.logits(x, weight)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits.double(), exact, rtol=1e-5, atol=1e-5)
    assert not torch.equal(logits, ops.linear(x, weight).float())
