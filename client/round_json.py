"""A round's live structures as JSON: the wire's names, arrays as numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from google.protobuf.message import Message

from paceline.round_codec import decode_tensor
from paceline.v1 import common_pb2

_NUMPY_DTYPES = {"int32": np.int32, "int64": np.int64, "uint64": np.uint64}


def round_json(message: Message) -> dict[str, Any]:
    """Fields that are set. Integer tensors become nested lists, features only dtype and shape. Raises WireError."""
    return {field.name: _plain(value) for field, value in message.ListFields()}


def _plain(value: Any) -> Any:
    if isinstance(value, common_pb2.Tensor):
        return _array(value)
    if isinstance(value, Message):
        return round_json(value)
    if hasattr(value, "items"):
        return dict(value)
    return value if isinstance(value, int | float | str) else list(value)


def _array(message: common_pb2.Tensor) -> Any:
    tensor = decode_tensor(message)
    dtype = _NUMPY_DTYPES.get(tensor.dtype)
    if dtype is None:
        return {"dtype": tensor.dtype, "shape": list(tensor.shape)}
    return np.frombuffer(tensor.data, dtype).reshape(tensor.shape).tolist()
