"""Which product a shape gets, with algorithms and times that are given."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence

import pytest
import torch
from torch.nn.functional import linear

pytest.importorskip("triton", reason="triton is not installed here")
from kernels.triton_ops.cublaslt import Algorithm, CublasLtError, Offer
from kernels.triton_ops.product import ALIGNMENT, Operands, Product, torch_product
from kernels.triton_ops.tuned_linear import MAX_ROWS, MIN_GAIN, MIN_ROWS, ProductSource, TunedLinear, fastest

CPU = torch.device("cpu")
ROWS, NUM_OUT, WIDTH = MIN_ROWS, 40, 64


class Marked:
    """torch's product, plus an error; counts its uses."""

    def __init__(self, error: float = 0.0) -> None:
        self._error = error
        self.uses = 0

    def __call__(self, operands: Operands, out: torch.Tensor) -> None:
        torch_product(operands, out)
        out += self._error
        self.uses += 1


class Refused:
    def __call__(self, operands: Operands, out: torch.Tensor) -> None:
        raise CublasLtError("not supported")


class Shop:
    """Sells the same products for every shape, each of a known time, and counts who asked."""

    def __init__(self, *wares: tuple[Product, float], torch_us: float = 10.0) -> None:
        self._us = {id(product): us for product, us in wares} | {id(torch_product): torch_us}
        self._wares = [product for product, _ in wares]
        self.asked = 0

    def load(self, device: torch.device) -> ProductSource:
        return self

    def products(self, operands: Operands) -> Sequence[Product]:
        self.asked += 1
        return self._wares

    def time_us(self, products: Sequence[Product], operands: Operands) -> list[float]:
        return [self._us[id(product)] for product in products]

    def tuned(self) -> TunedLinear:
        return TunedLinear(CPU, load=self.load, time_us=self.time_us)


def _aligned(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Random, at an address as a GPU's allocator gives."""
    count = torch.Size(shape).numel()
    room = torch.empty(count + ALIGNMENT, dtype=dtype)
    start = -room.data_ptr() % ALIGNMENT // dtype.itemsize
    tensor = room[start : start + count].view(shape)
    return tensor.copy_(torch.randn(shape, generator=torch.Generator().manual_seed(count)))


def test_the_structures_are_as_large_as_the_library_has_them() -> None:
    assert ctypes.sizeof(Algorithm) == 64 and ctypes.sizeof(Offer) == 96


def test_the_fastest_is_taken_only_past_the_margin() -> None:
    assert fastest([10.0, 10.0 / MIN_GAIN - 0.01, 9.0, 12.0]) == 2
    assert fastest([10.0, 10.0 / MIN_GAIN + 0.01]) == 0
    assert fastest([10.0]) == 0


def test_a_choice_is_made_once_and_kept_after_the_tuning() -> None:
    slow, fast = Marked(), Marked()
    shop = Shop((slow, 9.5), (fast, 9.0))
    tuned = shop.tuned()
    x, weight, bias = _aligned(ROWS, WIDTH), _aligned(NUM_OUT, WIDTH), _aligned(NUM_OUT)
    with tuned.tuning():
        tuned.linear(x, weight)
        tuned.linear(x, _aligned(NUM_OUT, WIDTH))
        assert shop.asked == 1, "another weight of the same shape"
        tuned.linear(x, weight, bias)
        assert shop.asked == 2, "a bias makes another product"
    before = fast.uses
    for added in (None, bias):
        torch.testing.assert_close(tuned.linear(x, weight, added), linear(x, weight, added))
    assert (fast.uses, slow.uses) == (before + 2, 2) and shop.asked == 2, "the slow one ran to be checked alone"


def test_nothing_is_chosen_outside_the_tuning_nor_for_other_rows_dtypes_or_places() -> None:
    shop = Shop((Marked(), 1.0))
    tuned = shop.tuned()
    weight = _aligned(NUM_OUT, WIDTH)
    with tuned.tuning():
        for rows in (MIN_ROWS - 1, MAX_ROWS + 1):
            tuned.linear(_aligned(rows, WIDTH), weight)
        tuned.linear(_aligned(ROWS, WIDTH, dtype=torch.float32), weight.float())
        tuned.linear(_aligned(ROWS + 1, WIDTH).view(-1)[8 : 8 + ROWS * WIDTH].view(ROWS, WIDTH), weight)
        tuned.linear(_aligned(WIDTH, ROWS).T, weight)
    tuned.linear(_aligned(ROWS, WIDTH), weight)
    assert shop.asked == 0


def test_rows_that_lie_apart_are_a_shape_of_their_own() -> None:
    fast = Marked()
    shop = Shop((fast, 9.0))
    tuned = shop.tuned()
    wide, weight = _aligned(ROWS, 2 * WIDTH), _aligned(NUM_OUT, WIDTH)
    with tuned.tuning():
        got = tuned.linear(wide[:, :WIDTH], weight)
        tuned.linear(_aligned(ROWS, WIDTH), weight)
    torch.testing.assert_close(got, linear(wide[:, :WIDTH], weight))
    assert shop.asked == 2 and fast.uses == 4


@pytest.mark.parametrize("wrong", [Marked(error=0.5), Marked(error=float("nan")), Refused()])
def test_a_fast_product_that_is_wrong_or_refuses_is_passed_over(wrong: Product) -> None:
    right = Marked()
    tuned = Shop((wrong, 1.0), (right, 9.0)).tuned()
    x, weight = _aligned(ROWS, WIDTH), _aligned(NUM_OUT, WIDTH)
    with tuned.tuning():
        torch.testing.assert_close(tuned.linear(x, weight), linear(x, weight))
    assert right.uses == 2


def test_what_was_chosen_is_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    tuned = Shop((Marked(), 8.0)).tuned()
    x = _aligned(ROWS, WIDTH)
    for _ in range(2):
        with tuned.tuning():
            tuned.linear(x, _aligned(NUM_OUT, WIDTH))
    assert [record.getMessage()[:44] for record in caplog.records] == ["products: 1 of 1 shapes by another algorithm"]
    assert "25.0 % faster" in caplog.text


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch brings the library here")
def test_without_the_library_every_product_is_torchs_and_a_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    tuned = TunedLinear(CPU)
    x, weight = _aligned(ROWS, WIDTH), _aligned(NUM_OUT, WIDTH)
    with tuned.tuning():
        for rows in (ROWS, ROWS + 1):
            x = _aligned(rows, WIDTH)
            assert torch.equal(tuned.linear(x, weight), linear(x, weight))
    assert caplog.text.count("libcublasLt.so.13, libcublasLt.so.12") == 1
