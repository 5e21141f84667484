"""TunedLinear: torch's linear, but for shapes whose product an algorithm of cuBLASLt was timed to compute faster."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from kernels.triton_ops.cublaslt import CublasLt, CublasLtError
from kernels.triton_ops.product import Operands, Product, ProductShape, torch_product
from kernels.triton_ops.product_timer import ProductTimer

# Past these rows torch's own choice is as fast: python -m bench.gpu_products
MIN_ROWS, MAX_ROWS = 48, 512
MIN_GAIN = 1.015  # times that an algorithm must be faster than torch's: less is noise
_DTYPES = (torch.bfloat16, torch.float16)  # a sum in fp32 stays as it is, bit for bit
_LOG = logging.getLogger(__name__)


class ProductSource(Protocol):
    """What offers algorithms: CublasLt, but in tests."""

    def products(self, operands: Operands) -> Sequence[Product]:
        """Ways to compute products of the operands' shape. Raises CublasLtError where there is none."""
        ...


class TunedLinear:
    """Chooses once for each shape, within ``tuning``; a choice holds for good, in captured graphs and out of them."""

    def __init__(
        self,
        device: torch.device,
        *,
        load: Callable[[torch.device], ProductSource] = CublasLt,
        time_us: Callable[[Sequence[Product], Operands], list[float]] | None = None,
    ) -> None:
        """load: called when the first choice is due; where it raises CublasLtError, every product stays torch's.

        time_us: microseconds of one use of each product; None takes a ProductTimer.
        """
        self._device = device
        self._load = load
        self._time_us = ProductTimer() if time_us is None else time_us
        self._source: ProductSource | None = None
        self._is_tuning = False
        self._choices: dict[ProductShape, _Choice] = {}

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """``kernels.ops.Ops.linear``."""
        product = self._product_for(x, weight, bias) if MIN_ROWS <= len(x) <= MAX_ROWS else None
        if product is None:
            return functional.linear(x, weight, bias)
        out = torch.empty((len(x), len(weight)), dtype=x.dtype, device=x.device)
        product(Operands(x, weight, bias), out)
        return out

    @contextmanager
    def tuning(self) -> Iterator[None]:
        """``kernels.ops.Ops.tuning``."""
        known = set(self._choices)
        self._is_tuning = True
        try:
            yield
        finally:
            self._is_tuning = False
        self._log([choice for shape, choice in self._choices.items() if shape not in known])

    def _product_for(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Product | None:
        """None: torch's."""
        if not (self._is_tuning or self._choices) or not _fits(x, weight, bias):
            return None
        operands = Operands(x, weight, bias)
        choice = self._choices.get(operands.shape)
        if choice is None and self._is_tuning and not (x.is_cuda and torch.cuda.is_current_stream_capturing()):
            choice = self._choices[operands.shape] = self._choose(operands)
        return None if choice is None else choice.product

    def _choose(self, operands: Operands) -> _Choice:
        started_s = time.perf_counter()
        like = Operands(_random_like(operands.x), operands.weight, operands.bias)
        expected = functional.linear(like.x, like.weight, like.bias)
        right = [product for product in self._offered(like) if _is_right(product, like, expected)]
        if not right:
            return _Choice(None, 1.0, time.perf_counter() - started_s)
        times_us = self._time_us([torch_product, *right], like)
        best = fastest(times_us)
        product = None if best == 0 else right[best - 1]
        return _Choice(product, times_us[0] / times_us[best], time.perf_counter() - started_s)

    def _offered(self, operands: Operands) -> Sequence[Product]:
        if self._source is None:
            try:
                self._source = self._load(self._device)
            except CublasLtError as error:
                _LOG.warning("every product stays torch's: %s", error)
                self._source = _NoSource()
        try:
            return self._source.products(operands)
        except CublasLtError as error:
            _LOG.warning("the product of %s stays torch's: %s", operands.shape, error)
            return ()

    def _log(self, choices: Sequence[_Choice]) -> None:
        gains = [choice.gain for choice in choices if choice.product is not None]
        if choices:
            _LOG.info(
                "products: %d of %d shapes by another algorithm of cuBLASLt than torch's, %.1f %% faster on average; "
                "chosen in %.1f s",
                len(gains),
                len(choices),
                100 * (statistics.fmean(gains) - 1) if gains else 0.0,
                sum(choice.took_s for choice in choices),
            )


@dataclass(frozen=True, slots=True)
class _Choice:
    """product: None is torch's. gain: its time over the product's."""

    product: Product | None
    gain: float
    took_s: float


class _NoSource:
    def products(self, operands: Operands) -> Sequence[Product]:
        return ()


def fastest(times_us: Sequence[float]) -> int:
    """Which to take: the first, unless the fastest other is MIN_GAIN times as fast."""
    best = min(range(len(times_us)), key=lambda i: times_us[i])
    return best if times_us[best] * MIN_GAIN <= times_us[0] else 0


def _fits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether these are operands that an algorithm may be chosen for."""
    is_one_dtype = x.dtype in _DTYPES and weight.dtype == x.dtype and (bias is None or bias.dtype == x.dtype)
    is_laid_out = x.stride(1) == 1 and x.stride(0) >= x.shape[1] and weight.is_contiguous()
    return is_one_dtype and is_laid_out and Operands(x, weight, bias).is_aligned


def _random_like(x: Tensor) -> Tensor:
    """At start all rows of x may be the same, and a wrong result look right. In the layout of x."""
    rows, stride = len(x), x.stride(0)
    generator = torch.Generator(x.device).manual_seed(0)
    wide = torch.randn((rows, stride), generator=generator, dtype=x.dtype, device=x.device)
    return wide[:, : x.shape[1]]


def _is_right(product: Product, operands: Operands, expected: Tensor) -> bool:
    """Whether it computes what torch does, up to the rounding of the result and the order of the sum. Waits for it."""
    out = torch.full_like(expected, math.nan)
    try:
        product(operands, out)
    except CublasLtError as error:
        _LOG.debug("an algorithm on offer for %s does not run: %s", operands.shape, error)
        return False
    one_ulp = torch.finfo(expected.dtype).eps
    of_sum = one_ulp * 2**-5 * float(expected.abs().max())
    return torch.allclose(out.float(), expected.float(), rtol=one_ulp, atol=of_sum)
