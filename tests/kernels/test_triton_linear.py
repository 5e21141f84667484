"""The Triton product of few rows against one in fp64."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed here")
from kernels.triton_ops.linear import MAX_ROWS, SkinnyLinear, SkinnyPlan, SkinnyTile, plan_skinny
from tests.support.triton_devices import DEVICES, HALF

SMALL = SkinnyTile(block_out=64, block_k=32, num_stages=2)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


def _random(*shape: int, device: torch.device) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(device, HALF)


def _check(got: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    one_ulp = {torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float32: 1e-5}[got.dtype]
    torch.testing.assert_close(got.double(), expected, rtol=one_ulp, atol=one_ulp)


@pytest.mark.parametrize(("rows", "num_out", "width"), [(1, 70, 48), (5, 64, 96), (16, 1, 16), (33, 130, 80)])
@pytest.mark.parametrize("split_width", [32, 64, 96])
def test_any_split_gives_the_product(
    device: torch.device, rows: int, num_out: int, width: int, split_width: int
) -> None:
    skinny = SkinnyLinear(device)
    x, weight = _random(rows, 2 * width, device=device)[:, width:], _random(num_out, width, device=device)
    for _ in range(2):  # the second finds the counters as the first left them
        _check(skinny.linear(x, weight, plan=SkinnyPlan(SMALL, split_width)), x, weight)


@pytest.mark.parametrize("split_width", [32, 64])
def test_a_bias_is_added_once_and_the_sum_may_stay_fp32(device: torch.device, split_width: int) -> None:
    skinny = SkinnyLinear(device)
    x, weight, bias = _random(3, 64, device=device), _random(20, 64, device=device), _random(20, device=device)
    plan = SkinnyPlan(SMALL, split_width)
    _check(skinny.linear(x, weight, bias, plan=plan), x, weight, bias)
    got = skinny.linear(x, weight, out_dtype=torch.float32, plan=plan)
    assert got.dtype == torch.float32
    _check(got, x, weight)


@pytest.mark.parametrize(("num_out", "width"), [(6144, 4096), (4096, 14336), (49152, 4096), (960, 576), (576, 1536)])
@pytest.mark.parametrize("rows", [1, 16, MAX_ROWS])
@pytest.mark.parametrize("is_rounded", [False, True])
def test_a_plan_covers_the_width_in_whole_blocks(rows: int, num_out: int, width: int, is_rounded: bool) -> None:
    plan = plan_skinny(rows, num_out, width, num_sms=132, is_rounded=is_rounded)
    assert plan.split_width % plan.tile.block_k == 0 and plan.split_width > 0
    num_tiles, num_splits = -(-num_out // plan.tile.block_out), -(-width // plan.split_width)
    if num_splits > 1:
        assert num_tiles * num_splits <= 132, "a split is to fill multiprocessors, not to queue"
        assert plan.split_width >= 256, "what a split costs is more than so little width saves"
    if num_tiles <= 66 and width >= 512:
        assert num_splits > 1, "half of the multiprocessors would idle"


@pytest.mark.gpu
@pytest.mark.parametrize(("num_out", "width"), [(6144, 4096), (4096, 14336), (960, 576), (49152, 576)])
@pytest.mark.parametrize("rows", [1, 7, 16, 17, 40, 64])
@pytest.mark.parametrize("overlap", [False, True])
def test_planned_products_of_real_shapes_are_right_and_repeat_bit_for_bit(
    rows: int, num_out: int, width: int, overlap: bool
) -> None:
    device = torch.device("cuda")
    skinny = SkinnyLinear(device, overlap=overlap)
    x, weight = _random(rows, width, device=device), _random(num_out, width, device=device) * width**-0.5
    got = skinny.linear(x, weight)
    _check(got, x, weight)
    for _ in range(20):
        assert torch.equal(skinny.linear(x, weight), got)


def test_what_does_not_fit_is_told(device: torch.device) -> None:
    weight = torch.zeros(8, 32, device=device, dtype=HALF)
    assert SkinnyLinear.fits(torch.zeros(MAX_ROWS, 32, device=device, dtype=HALF), weight)
    assert not SkinnyLinear.fits(torch.zeros(MAX_ROWS + 1, 32, device=device, dtype=HALF), weight)
    assert not SkinnyLinear.fits(torch.zeros(1, 32, device=device), weight)
    assert not SkinnyLinear.fits(torch.zeros(1, 24, device=device, dtype=HALF), weight[:, :24])
