"""Weights in 8 bits with a scale a row, and Triton's product with them."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed here")
from kernels.triton_ops.linear import MAX_ROWS, SkinnyLinear, SkinnyPlan, SkinnyTile
from kernels.triton_ops.ops import TritonOps
from kernels.triton_ops.rounded_weight import DraftWeight, RoundedWeight
from tests.support.triton_devices import DEVICES, HALF

SMALL = SkinnyTile(block_out=64, block_k=32, num_stages=2)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


def _random(*shape: int, device: torch.device, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(device, dtype)


def _values(rounded: RoundedWeight) -> torch.Tensor:
    """[out, in] fp64: what it stands for."""
    halves = rounded.pairs.view(torch.int8).view(*rounded.pairs.shape, 2)
    return torch.cat([halves[..., 0], halves[..., 1]], 1).double() * rounded.scales.double()[:, None]


def _check(got: torch.Tensor, x: torch.Tensor, rounded: RoundedWeight, bias: torch.Tensor | float = 0.0) -> None:
    expected = x.double() @ _values(rounded).T + bias
    one_ulp = {torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float32: 1e-5}[got.dtype]
    torch.testing.assert_close(got.double(), expected, rtol=one_ulp, atol=one_ulp)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_rounded_value_is_off_by_half_a_scale_at_most(dtype: torch.dtype) -> None:
    weight = _random(4100, 32, device=torch.device("cpu"), dtype=dtype)
    weight[7] = 0
    rounded = RoundedWeight.of(weight)
    largest = weight.double().abs().amax(1)
    torch.testing.assert_close(rounded.scales.double() * 127, largest)
    error = (_values(rounded) - weight.double()).abs().amax(1)
    assert (error <= largest / 127 / 2 * (1 + 1e-5)).all() and error[7] == 0
    assert rounded.nbytes == weight.nbytes // 2 + 4 * len(weight)


@pytest.mark.parametrize(("rows", "num_out", "width"), [(1, 70, 48), (8, 64, 192), (9, 1, 16), (33, 130, 80)])
@pytest.mark.parametrize("split_width", [32, 64, 96])
def test_any_split_gives_the_product_with_the_rounded_values(
    device: torch.device, rows: int, num_out: int, width: int, split_width: int
) -> None:
    skinny = SkinnyLinear(device)
    x, rounded = (
        _random(rows, 2 * width, device=device)[:, width:],
        RoundedWeight.of(_random(num_out, width, device=device)),
    )
    for _ in range(2):  # the second finds the counters as the first left them
        _check(skinny.linear(x, rounded, plan=SkinnyPlan(SMALL, split_width)), x, rounded)


@pytest.mark.parametrize("split_width", [32, 64])
def test_a_bias_is_added_once_and_the_sum_may_stay_fp32(device: torch.device, split_width: int) -> None:
    skinny, plan = SkinnyLinear(device), SkinnyPlan(SMALL, split_width)
    x, bias = _random(3, 128, device=device), _random(20, device=device)
    rounded = RoundedWeight.of(_random(20, 128, device=device))
    _check(skinny.linear(x, rounded, bias, plan=plan), x, rounded, bias.double())
    got = skinny.linear(x, rounded, out_dtype=torch.float32, plan=plan)
    assert got.dtype == torch.float32
    _check(got, x, rounded)


def test_every_int8_is_widened_exactly(device: torch.device) -> None:
    pairs = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(256, 256).to(device)
    rounded = RoundedWeight(pairs, torch.ones(256, device=device))
    for dtype in {HALF, torch.float16}:
        for units in torch.eye(512, dtype=dtype, device=device).split(MAX_ROWS):
            first = int(units[0].argmax())
            got = SkinnyLinear(device).linear(units, rounded)
            assert torch.equal(got.double(), _values(rounded)[:, first : first + MAX_ROWS].T)


def test_a_draft_weight_is_a_plain_tensor_to_torch(device: torch.device) -> None:
    weight = _random(6, 32, device=device)
    draft = DraftWeight.of(weight)
    assert draft.data_ptr() == weight.data_ptr() and type(draft.t()) is torch.Tensor
    x = _random(3, 32, device=device)
    assert torch.equal(torch.nn.functional.linear(x, draft), torch.nn.functional.linear(x, weight))


def test_few_rows_are_multiplied_in_8_bits_and_many_rows_by_the_weight_itself(device: torch.device) -> None:
    ops = TritonOps(device, rounded_rows=4, skinny_rows=0)
    weight, x, bias = (_random(*shape, device=device) for shape in ((20, 64), (5, 64), (20,)))
    draft = ops.prepare_draft_weight(weight)
    assert isinstance(draft, DraftWeight) and ops.rounded_bytes(draft) == draft.rounded.nbytes
    _check(ops.linear(x[:4], draft, bias), x[:4], draft.rounded, bias.double())
    _check(ops.logits(x[:4], draft), x[:4], draft.rounded)
    assert torch.equal(ops.linear(x, draft, bias), ops.linear(x, weight, bias))
    assert torch.equal(ops.logits(x, draft), ops.logits(x, weight))


def test_what_is_not_rounded_stays_a_plain_weight(device: torch.device) -> None:
    weight = _random(20, 64, device=device)
    for ops, other in (
        (TritonOps(device), weight.float()),
        (TritonOps(device), _random(20, 24, device=device)),
        (TritonOps(device, rounded_rows=0), weight),
    ):
        plain = ops.prepare_draft_weight(other)
        assert type(plain) is torch.Tensor and ops.rounded_bytes(plain) == 0


@pytest.mark.gpu
@pytest.mark.parametrize(("num_out", "width"), [(6144, 8192), (4096, 14336), (960, 1152), (16384, 576)])
@pytest.mark.parametrize("rows", [1, 7, 8, 9, 17, 40, 64, 100, MAX_ROWS])
@pytest.mark.parametrize("overlap", [False, True])
def test_planned_products_of_real_shapes_are_right_and_repeat_bit_for_bit(
    rows: int, num_out: int, width: int, overlap: bool
) -> None:
    device = torch.device("cuda")
    skinny = SkinnyLinear(device, overlap=overlap)
    x, weight = _random(rows, width, device=device), _random(num_out, width, device=device) * width**-0.5
    rounded = RoundedWeight.of(weight)
    got = skinny.linear(x, rounded)
    _check(got, x, rounded)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = skinny.linear(x, rounded)
    for _ in range(20):
        graph.replay()
        assert torch.equal(replayed, got) and torch.equal(skinny.linear(x, rounded), got)
