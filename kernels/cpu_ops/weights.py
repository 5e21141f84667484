"""Weights as the C products take them: packed in their own dtype, or rounded to int8 with a scale for each row."""

from __future__ import annotations

import torch
from torch import Tensor

_STEP = 32  # common.h: MAX_STEP
_SCALE_BYTES = 4


def can_round(weight: Tensor) -> bool:
    """Whether C knows a product with the weight [out, in] rounded."""
    return weight.dtype == torch.bfloat16 and weight.shape[1] % _STEP == 0


def rounded_shape(weight: Tensor) -> tuple[int, int]:
    """Of the int8 tensor that holds the rounded weight: behind all rows lie their fp32 scales."""
    return weight.shape[0], weight.shape[1] + _SCALE_BYTES


def fits_weight(weight: Tensor, x: Tensor) -> bool:
    """Whether the packed or rounded weight takes x [rows, in]."""
    width, is_rounded = x.shape[1], weight.dtype == torch.int8
    wanted = (torch.bfloat16, width + _SCALE_BYTES) if is_rounded else (weight.dtype, width)
    return (x.dtype, weight.shape[1]) == wanted and weight.is_contiguous()


def address_of_weight(weight: Tensor) -> tuple[int, bool]:
    """And whether it is rounded."""
    return weight.data_ptr(), weight.dtype == torch.int8
