"""Weights in 8 bits: int8 values with a scale for each row, as ``kernels.triton_ops.linear`` reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK_ROWS = 4096  # rounded at once, for what is needed in between stays small
_LARGEST = 127
_TO_BF16 = tl.constexpr("""
lop3.b32 bits, pair, 0x007F007F, 0x43004300, 0xEA;
lop3.b32 offset, pair, 0x00800080, 0xC300C300, 0xEA;
mov.b32 pair, 0x3F803F80;
fma.rn.bf16x2 $0, bits, pair, offset;
""")
_TO_FP16 = tl.constexpr("""
lop3.b32 bits, pair, 0x00FF00FF, 0x64806480, 0x6A;
mov.b32 offset, 0x64806480;
sub.f16x2 $0, bits, offset;
""")


@dataclass(frozen=True, slots=True)
class RoundedWeight:
    """A weight [out, in]: value = int8 * its row's scale, off by half a scale at most.

    Values j and j + in / 2 of a row lie in one int16, so that a register of two becomes two of two values in x's dtype
    by a few instructions without a shuffle, and both halves of x are read as they lie.
    """

    pairs: Tensor  # [out, in / 2] int16: value j in the low byte
    scales: Tensor  # [out] fp32

    @classmethod
    def of(cls, weight: Tensor) -> Self:
        """in must be even."""
        num_out, width = weight.shape
        pairs = torch.empty((num_out, width // 2), dtype=torch.int16, device=weight.device)
        scales = torch.empty(num_out, dtype=torch.float32, device=weight.device)
        for start in range(0, num_out, _BLOCK_ROWS):
            block = slice(start, start + _BLOCK_ROWS)
            values = weight[block].float()
            scale = values.abs().amax(1) / _LARGEST
            scales[block] = scale
            values /= torch.where(scale > 0, scale, 1)[:, None]
            halves = values.round_().to(torch.int8).view(-1, 2, width // 2)
            pairs[block] = halves.transpose(1, 2).contiguous().view(torch.int16).squeeze(-1)
        return cls(pairs, scales)

    @property
    def nbytes(self) -> int:
        return self.pairs.nbytes + self.scales.nbytes


class DraftWeight(Tensor):
    """A weight that brings its rounded copy along. In torch's own ops it is a plain tensor."""

    rounded: RoundedWeight

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def of(cls, weight: Tensor) -> Self:
        draft = weight.as_subclass(cls)
        draft.rounded = RoundedWeight.of(weight)
        return draft


@triton.jit
def byte_values(pairs, IS_HIGH: tl.constexpr, dtype: tl.constexpr, PACKED: tl.constexpr):
    """The int16's high or low bytes, signed, as bf16 or fp16. PACKED: two at a time, by instructions of NVIDIA's.

    bf16 has 7 bits of mantissa, so the sign, which stands for -128, is subtracted: (128 + 7 bits) - (128 or 256). fp16
    has 10: 1024 + (byte + 128) - 1152.
    """
    if PACKED:
        shift: tl.constexpr = "shr.b32 pair, $1, 8;" if IS_HIGH else "mov.b32 pair, $1;"
        widen: tl.constexpr = _TO_BF16 if dtype == tl.bfloat16 else _TO_FP16
        values = tl.inline_asm_elementwise(
            "{ .reg .b32 pair, bits, offset;" + shift + widen + "}",
            "=r,r",
            [pairs],
            dtype=dtype.value,
            is_pure=True,
            pack=2,
        )
    elif IS_HIGH:
        values = (pairs >> 8).to(dtype)
    else:
        values = pairs.to(tl.int8).to(dtype)
    return values
