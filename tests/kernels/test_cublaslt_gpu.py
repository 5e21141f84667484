"""Products by every algorithm that cuBLASLt offers, and the choice among them, on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch.nn.functional import linear

pytest.importorskip("triton", reason="triton is not installed here")
from kernels.triton_ops.cublaslt import CublasLt, CublasLtError
from kernels.triton_ops.ops import TritonOps
from kernels.triton_ops.product import Operands, Product, torch_product
from kernels.triton_ops.product_timer import ProductTimer
from kernels.triton_ops.tuned_linear import TunedLinear

pytestmark = pytest.mark.gpu
SHAPES = [(48, 70, 48), (77, 961, 576), (130, 1536, 577), (256, 4096, 1536)]  # rows, out, width


def _operands(
    rows: int, num_out: int, width: int, *, dtype: torch.dtype = torch.bfloat16, gap: int = 0, has_bias: bool = False
) -> Operands:
    """gap: values between the rows of x."""
    generator = torch.Generator("cuda").manual_seed(rows)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype, device="cuda")

    x, weight = random(rows, width + gap)[:, :width], random(num_out, width) * width**-0.5
    return Operands(x, weight, random(num_out) if has_bias else None)


def _check(got: torch.Tensor, operands: Operands) -> None:
    expected = operands.x.double() @ operands.weight.double().T
    if operands.bias is not None:
        expected += operands.bias.double()
    one_ulp = torch.finfo(got.dtype).eps
    torch.testing.assert_close(got.double(), expected, rtol=one_ulp, atol=1e-4)


def _last_on_offer(products: Sequence[Product], operands: Operands) -> list[float]:
    return [float(len(products) - i) for i in range(len(products))]


@pytest.mark.parametrize(("rows", "num_out", "width"), SHAPES)
@pytest.mark.parametrize("gap", [0, 576])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_algorithm_on_offer_gives_the_product(
    rows: int, num_out: int, width: int, gap: int, has_bias: bool, dtype: torch.dtype
) -> None:
    operands = _operands(rows, num_out, width, dtype=dtype, gap=gap, has_bias=has_bias)
    num_right = 0
    for product in CublasLt(torch.device("cuda")).products(operands):
        out = torch.full((rows, num_out), float("nan"), dtype=dtype, device="cuda")
        try:
            product(operands, out)
        except CublasLtError:
            continue  # on offer, and refused for this stride
        _check(out, operands)
        num_right += 1
    assert num_right > 0


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("gap", [0, 1536])
def test_a_graph_holds_the_chosen_product_and_gives_bit_for_bit_what_an_eager_call_does(
    has_bias: bool, gap: int
) -> None:
    tuned = TunedLinear(torch.device("cuda"), time_us=_last_on_offer)
    held = _operands(96, 4096, 1536, gap=gap, has_bias=has_bias)
    second = held.weight.flip(0)  # of another layer, with another bias
    second_bias = None if held.bias is None else held.bias.flip(0)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with tuned.tuning():
        with torch.cuda.stream(stream):
            tuned.linear(held.x, held.weight, held.bias)
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            got = [tuned.linear(held.x, held.weight, held.bias), tuned.linear(held.x, second, second_bias)]
    for seed in range(3):
        held.x.copy_(torch.randn(held.x.shape, generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        for result, weight, bias in zip(got, (held.weight, second), (held.bias, second_bias), strict=True):
            _check(result, Operands(held.x, weight, bias))
            assert torch.equal(result, tuned.linear(held.x, weight, bias))


def test_ops_that_were_tuned_agree_with_torch_and_fp32_stays_torchs_bit_for_bit() -> None:
    ops = TritonOps("cuda")
    cases = [_operands(rows, 4096, 1536, has_bias=has_bias) for rows in (64, 200) for has_bias in (False, True)]
    with ops.tuning():
        for operands in cases:
            ops.linear(operands.x, operands.weight, operands.bias)
    for operands in cases:
        _check(ops.linear(operands.x, operands.weight, operands.bias), operands)
    single = _operands(64, 961, 576, dtype=torch.float32, has_bias=True)
    with ops.tuning():
        got = ops.linear(single.x, single.weight, single.bias)
    assert torch.equal(got, linear(single.x, single.weight, single.bias))


def test_a_product_of_more_bytes_takes_longer_and_equal_ones_take_as_long() -> None:
    small, large = _operands(64, 2048, 2048), _operands(64, 16384, 4096)
    timer, times = ProductTimer(), []
    for operands in (small, large):
        torch_product(operands, torch.empty((64, len(operands.weight)), dtype=torch.bfloat16, device="cuda"))
        times.append(timer([torch_product] * 3, operands))
    assert min(times[1]) > max(times[0])
    assert max(times[1]) < 1.1 * min(times[1])
