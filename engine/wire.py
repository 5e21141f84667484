"""Dense arrays between the wire and torch, bfloat16 included."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from paceline.errors import WireError
from paceline.rounds import RawTensor

_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint64": torch.uint64,
}
_WORTH_BORROWING = 64 << 10  # bytes: a copy of 1 MB takes 77 us, the view 7 us
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def to_tensor(raw: RawTensor) -> Tensor:
    """A CPU tensor of raw's dtype and shape that owns its memory."""
    dtype = _DTYPES[raw.dtype]
    if not raw.data:  # frombuffer takes no empty buffer
        return torch.empty(raw.shape, dtype=dtype)
    return torch.frombuffer(bytearray(raw.data), dtype=dtype).view(raw.shape)


def borrow_tensor(raw: RawTensor) -> Tensor:
    """A CPU tensor of raw's dtype and shape, to be read only. A large one shares raw's bytes, and keeps them alive.

    Those of a memoryview may lie at an odd address: to be copied, not computed with.
    """
    if len(raw.data) < _WORTH_BORROWING:
        return to_tensor(raw)
    if isinstance(raw.data, memoryview):
        return torch.frombuffer(raw.data, dtype=_DTYPES[raw.dtype]).view(raw.shape)
    # frombuffer warns of memory that is not to be written, once a process; ctypes' view of it is not marked so.
    view = ctypes.cast(ctypes.c_char_p(raw.data), ctypes.POINTER(ctypes.c_char * len(raw.data))).contents
    return torch.frombuffer(view, dtype=_DTYPES[raw.dtype]).view(raw.shape)


def to_raw(tensor: Tensor) -> RawTensor:
    """The bytes of a tensor of any device. Raises WireError for a dtype that has no name on the wire."""
    name = dtype_name(tensor.dtype)
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return RawTensor(name, tuple(tensor.shape), data)


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype on the wire and in flags, like "bfloat16". Raises WireError for one that has none."""
    name = _NAMES.get(dtype)
    if name is None:
        raise WireError(f"{dtype} does not travel; convert to one of {sorted(_DTYPES)}")
    return name


def dtype_named(name: str) -> torch.dtype:
    """The inverse of ``dtype_name``. Raises WireError for an unknown name."""
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise WireError(f"{name!r} is no dtype; take one of {sorted(_DTYPES)}")
    return dtype
