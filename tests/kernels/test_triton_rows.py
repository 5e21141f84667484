"""The Triton kernels of norms, activation, rotary positions and rows against the reference ops."""

from __future__ import annotations

import pytest
import torch

from kernels.ops import HeadNorms
from kernels.reference.ops import ReferenceOps

pytest.importorskip("triton", reason="triton is not installed here")
from kernels.triton_ops.ops import TritonOps
from tests.support.triton_devices import DEVICES, HALF

DTYPES = [HALF, torch.float32]
SHAPES = [(1, 576), (3, 1), (7, 33), (5, 101)]
ONE_ULP = {torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float32: 3e-6}
REFERENCE = ReferenceOps()


@pytest.fixture(params=DEVICES)
def ops(request: pytest.FixtureRequest) -> TritonOps:
    return TritonOps(request.param)


def _random(*shape: int, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(*shape, generator=generator) * scale).to(dtype)


def _assert_rounded_alike(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal up to one rounding: sums run in another order, so that a value may fall on the other side."""
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got.cpu().double(), expected.double(), rtol=ONE_ULP[got.dtype], atol=2e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_rms_norm_equals_the_reference(ops: TritonOps, rows: int, width: int, dtype: torch.dtype) -> None:
    x, weight = _random(rows, width, dtype=dtype, scale=30.0), _random(width, dtype=dtype)
    got = ops.rms_norm(x.to(ops.device), weight.to(ops.device), 1e-5)
    _assert_rounded_alike(got, REFERENCE.rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), SHAPES)
@pytest.mark.parametrize("captures", [False, True])
def test_add_rms_norm_adds_into_the_residual_and_the_capture(
    ops: TritonOps, rows: int, width: int, dtype: torch.dtype, captures: bool
) -> None:
    x, weight = _random(rows, width, dtype=dtype), _random(width, dtype=dtype)
    residual = _random(rows, width + 1, dtype=dtype)[:, :-1].contiguous()
    on_device = residual.to(ops.device, copy=True)
    aux = torch.zeros(rows, 3 * width, dtype=dtype, device=ops.device)
    capture = aux[:, width : 2 * width] if captures else None
    got = ops.add_rms_norm(x.to(ops.device), on_device, weight.to(ops.device), 1e-5, capture=capture)
    total = x + residual
    assert torch.equal(on_device.cpu(), total)
    _assert_rounded_alike(got, REFERENCE.rms_norm(total, weight, 1e-5))
    expected = torch.zeros(rows, 3 * width, dtype=dtype)
    expected[:, width : 2 * width] = total if captures else 0
    assert torch.equal(aux.cpu(), expected)


def test_per_head_norms_take_a_slice_of_the_projections(ops: TritonOps) -> None:
    heads, weight = _random(5, 6, 24, dtype=HALF), _random(24, dtype=HALF)
    got = ops.rms_norm(heads.to(ops.device)[:, 1:4], weight.to(ops.device), 1e-6)
    _assert_rounded_alike(got, REFERENCE.rms_norm(heads[:, 1:4], weight, 1e-6))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [*SHAPES, (2, 600)])
def test_silu_mul_equals_the_reference(ops: TritonOps, rows: int, width: int, dtype: torch.dtype) -> None:
    gate_up = _random(rows, 2 * width, dtype=dtype, scale=4.0)
    _assert_rounded_alike(ops.silu_mul(gate_up.to(ops.device)), REFERENCE.silu_mul(gate_up))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (5, 5, 6), (8, 1, 128), (1, 1, 2)])
@pytest.mark.parametrize("has_norms", [False, True])
def test_rope_append_rotates_q_and_writes_k_and_v_to_their_slots(
    ops: TritonOps, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, has_norms: bool
) -> None:
    sizes = [heads, kv_heads, kv_heads]
    qkv = _random(3, sum(sizes), head_dim, dtype=dtype, scale=3.0)
    norms = [_random(head_dim, dtype=dtype), _random(head_dim + 1, dtype=dtype)[1:]]
    angle = torch.rand(3, head_dim // 2, generator=torch.Generator().manual_seed(0)) * 100
    cos_sin, slots = torch.cat((angle.cos(), angle.sin()), dim=1), torch.tensor([5, 0, 2])
    results = []
    for backend in (ops, REFERENCE):
        at = backend.device
        caches = [torch.zeros(7, kv_heads, head_dim, dtype=dtype, device=at) for _ in range(2)]
        q, k, v = qkv.to(at, copy=True).split(sizes, dim=1)
        head_norms = HeadNorms(norms[0].to(at), norms[1].to(at), 1e-6) if has_norms else None
        results.append([backend.rope_append(q, k, v, cos_sin.to(at), slots.to(at), *caches, norms=head_norms), *caches])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got.cpu(), expected, rtol=ONE_ULP[dtype], atol=4 * ONE_ULP[dtype])
    assert torch.equal(results[0][2].cpu(), results[1][2])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rope_alone_rotates_slices_in_place(ops: TritonOps, dtype: torch.dtype) -> None:
    qkv, angle = _random(4, 7, 32, dtype=dtype), torch.arange(64.0).view(4, 16)
    cos_sin = torch.cat((angle.cos(), angle.sin()), dim=1)
    expected, got = qkv.clone(), qkv.to(ops.device, copy=True)
    REFERENCE.rope(*expected.split([4, 2, 1], dim=1)[:2], cos_sin)
    ops.rope(*got.split([4, 2, 1], dim=1)[:2], cos_sin.to(ops.device))
    _assert_rounded_alike(got, expected)


def test_append_kv_writes_each_row_to_its_slot(ops: TritonOps) -> None:
    kv = _random(3, 4, 6, dtype=torch.bfloat16).to(ops.device)
    k_cache, v_cache = (torch.zeros(7, 2, 6, dtype=torch.bfloat16, device=ops.device) for _ in range(2))
    ops.append_kv(kv[:, :2], kv[:, 2:], torch.tensor([5, 0, 2], device=ops.device), k_cache, v_cache)
    assert torch.equal(k_cache[[5, 0, 2]], kv[:, :2]) and torch.equal(v_cache[[5, 0, 2]], kv[:, 2:])
    assert not k_cache[[1, 3, 4, 6]].any() and not v_cache[[1, 3, 4, 6]].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_embed_gathers_rows_of_a_table(ops: TritonOps, dtype: torch.dtype) -> None:
    table, ids = _random(11, 1030, dtype=dtype), torch.tensor([10, 0, 3, 3])
    assert torch.equal(ops.embed(ids.to(ops.device), table.to(ops.device)).cpu(), table[ids])


def test_scatter_rows_writes_a_slice_of_another_matrix(ops: TritonOps) -> None:
    pool, rows = torch.zeros(6, 33, device=ops.device), _random(2, 66, dtype=torch.float32).to(ops.device)
    ops.scatter_rows(pool, torch.tensor([4, 1], device=ops.device), rows[:, 33:])
    assert torch.equal(pool[[4, 1]], rows[:, 33:]) and not pool[[0, 2, 3, 5]].any()


@pytest.mark.parametrize("width", [1, 3, 8, 300])
def test_move_rows_compacts_all_pools_of_all_widths_in_one_launch(ops: TritonOps, width: int) -> None:
    """35 paths, so that the pairs fill more than one tile; each path moves down over nodes left out."""
    paths, stride = 35, 8
    src = torch.cat([p * stride + torch.tensor([2, 4, 7]) for p in range(paths)])
    dst = torch.cat([p * stride + torch.tensor([1, 2, 3]) for p in range(paths)])
    src, dst = torch.cat([src, torch.tensor([0, 0])]), torch.cat([dst, torch.tensor([0, 0])])
    shapes = [(width, 2), (width, 2), (2 * width,), (5 * width,)]
    pools = [_random(paths * stride, *shape, dtype=torch.bfloat16) for shape in shapes]
    on_device = [pool.to(ops.device, copy=True) for pool in pools]
    REFERENCE.move_rows(pools, src, dst)
    ops.move_rows(on_device, src.to(ops.device), dst.to(ops.device))
    for got, expected in zip(on_device, pools, strict=True):
        assert torch.equal(got.cpu(), expected)


def test_pools_of_odd_bytes_move_too(ops: TritonOps) -> None:
    pool = torch.arange(15, dtype=torch.int8, device=ops.device).view(5, 3)
    ops.move_rows([pool], torch.tensor([4, 1], device=ops.device), torch.tensor([3, 0], device=ops.device))
    assert pool[:, 0].tolist() == [3, 3, 6, 12, 12]


def test_logits_are_fp32_and_empty_steps_are_fine(ops: TritonOps) -> None:
    x, weight = _random(5, 64, dtype=HALF), _random(40, 64, dtype=HALF)
    got = ops.logits(x.to(ops.device), weight.to(ops.device))
    assert got.dtype == torch.float32
    tolerance = 2**-7 if ops.device.type == "cpu" else 1e-5
    torch.testing.assert_close(got.cpu(), x.float() @ weight.float().T, rtol=tolerance, atol=8 * tolerance)
    none, norm = torch.empty(0, 64, device=ops.device), torch.ones(64, device=ops.device)
    assert ops.rms_norm(none, norm, 1e-5).shape == ops.silu_mul(torch.cat([none, none], 1)).shape == (0, 64)


@pytest.mark.parametrize("num_tokens", [1, 1500])
def test_a_drawn_token_takes_its_place_and_others_keep_theirs(ops: TritonOps, num_tokens: int) -> None:
    generator = torch.Generator().manual_seed(num_tokens)
    drawn = torch.randint(0, 50000, (70,), generator=generator, dtype=torch.int32)
    tokens = torch.randint(-70, 50000, (num_tokens,), generator=generator)
    tokens[0] = -70
    got, wanted = tokens.to(ops.device, copy=True), tokens.clone()
    ops.fill_drawn(got, drawn.to(ops.device))
    REFERENCE.fill_drawn(wanted, drawn)
    assert torch.equal(got.cpu(), wanted)
    assert wanted[0] == drawn[69]
    assert torch.equal(wanted[tokens >= 0], tokens[tokens >= 0])
