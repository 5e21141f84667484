"""A round's live structures as JSON: the wire's names, arrays as numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from google.protobuf.json_format import MessageToDict

from paceline.codec import decode_tensor
from paceline.v1 import common_pb2, verify_pb2

_NUMPY_DTYPES = {"int32": np.int32, "int64": np.int64, "uint64": np.uint64}
_LINKS = ("retrieve_index", "retrieve_next_token", "retrieve_next_sibling")


def round_json(view: verify_pb2.RoundView) -> dict[str, Any]:
    """Integer tensors become nested lists; features only their dtype and shape. Raises WireError."""
    document = MessageToDict(view, preserving_proto_field_name=True)
    for name in _LINKS:
        if view.verify_input.HasField(name):
            document["verify_input"][name] = _values(getattr(view.verify_input, name))
    if view.extend_input.HasField("hidden_states"):
        tensor = decode_tensor(view.extend_input.hidden_states)
        document["extend_input"]["hidden_states"] = {"dtype": tensor.dtype, "shape": list(tensor.shape)}
    return document


def _values(message: common_pb2.Tensor) -> list[Any]:
    tensor = decode_tensor(message)
    return np.frombuffer(tensor.data, _NUMPY_DTYPES[tensor.dtype]).reshape(tensor.shape).tolist()
