"""Tensors keep their bits on the way over the wire."""

from __future__ import annotations

import pytest
import torch

from engine.wire import borrow_tensor, dtype_name, dtype_named, to_raw, to_tensor
from paceline.errors import WireError
from paceline.round_codec import decode_tensor, encode_tensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64])
def test_a_tensor_comes_back_bit_for_bit(dtype: torch.dtype) -> None:
    tensor = (torch.randn(5, 7, generator=torch.Generator().manual_seed(1)) * 100).to(dtype)
    back = to_tensor(decode_tensor(encode_tensor(to_raw(tensor))))
    assert back.dtype == dtype
    assert torch.equal(back, tensor)


def test_a_view_with_strides_travels_as_a_dense_array() -> None:
    tensor = torch.arange(12).view(3, 4).t()
    assert torch.equal(to_tensor(to_raw(tensor)), tensor)


def test_no_rows_keep_their_width() -> None:
    back = to_tensor(to_raw(torch.empty(0, 576, dtype=torch.bfloat16)))
    assert back.shape == (0, 576)
    assert back.dtype == torch.bfloat16


def test_a_received_tensor_owns_its_memory() -> None:
    raw = to_raw(torch.ones(4))
    to_tensor(raw).zero_()
    assert to_tensor(raw).sum() == 4


def test_dtypes_without_a_name_are_refused() -> None:
    assert dtype_named(dtype_name(torch.bfloat16)) is torch.bfloat16
    with pytest.raises(WireError, match="complex64"):
        dtype_name(torch.complex64)
    with pytest.raises(WireError, match="int4"):
        dtype_named("int4")


@pytest.mark.parametrize("num_rows", [0, 3, 300])
def test_a_borrowed_tensor_outlives_the_message_that_it_came_in(num_rows: int) -> None:
    tensor = torch.randn(num_rows, 256, generator=torch.Generator().manual_seed(2))
    borrowed = borrow_tensor(to_raw(tensor))
    others = [bytes(tensor.nbytes) for _ in range(20)]  # would take the memory if it were free
    assert torch.equal(borrowed, tensor)
    assert len(others) == 20
