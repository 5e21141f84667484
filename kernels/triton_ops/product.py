"""A product of activations and a weight: its shape, its operands, and the seam to what computes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

ALIGNMENT = 256  # bytes: where all operands begin at multiples of it, no algorithm is ruled out


class ProductShape(NamedTuple):
    """What the fastest algorithm depends on: x [rows, width] @ weight [num_out, width].T + bias [num_out]."""

    rows: int
    num_out: int
    width: int
    x_stride: int  # values from one row of x to the next
    dtype: torch.dtype
    has_bias: bool


@dataclass(frozen=True, slots=True)
class Operands:
    """All of one floating dtype on one device. Columns of x lie side by side; the weight is contiguous."""

    x: Tensor  # [rows, width]
    weight: Tensor  # [num_out, width]
    bias: Tensor | None = None  # [num_out]

    @property
    def shape(self) -> ProductShape:
        num_out, width = self.weight.shape
        return ProductShape(len(self.x), num_out, width, self.x.stride(0), self.x.dtype, self.bias is not None)

    @property
    def is_aligned(self) -> bool:
        tensors = (self.x, self.weight) if self.bias is None else (self.x, self.weight, self.bias)
        return all(tensor.data_ptr() % ALIGNMENT == 0 for tensor in tensors)


class Product(Protocol):
    """One way to compute the products of a shape."""

    def __call__(self, operands: Operands, out: Tensor) -> None:
        """MUTATES out [rows, num_out], of the operands' dtype and contiguous, in stream order and without a wait."""
        ...


def torch_product(operands: Operands, out: Tensor) -> None:
    """The Product that ``torch.nn.functional.linear`` computes."""
    if operands.bias is None:
        torch.mm(operands.x, operands.weight.t(), out=out)
    else:
        torch.addmm(operands.bias, operands.x, operands.weight.t(), out=out)
