"""The rounds' messages to columns and back: what target and draft send each other, and its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from paceline.errors import WireError
from paceline.rounds import ExtendColumns, RawTensor, VerifyColumns
from paceline.v1 import common_pb2, verify_pb2

_DTYPES = {
    common_pb2.DTYPE_FLOAT32: "float32",
    common_pb2.DTYPE_FLOAT16: "float16",
    common_pb2.DTYPE_BFLOAT16: "bfloat16",
    common_pb2.DTYPE_INT32: "int32",
    common_pb2.DTYPE_INT64: "int64",
    common_pb2.DTYPE_UINT64: "uint64",
}
DTYPE_CODES = {name: code for code, name in _DTYPES.items()}  # as they travel
_BYTES = 2  # wire type


def decode_tensor(message: common_pb2.Tensor, data: bytes | None = None) -> RawTensor:
    """data: the bytes, where the message is without. Raises WireError where dtype, shape and bytes disagree."""
    return RawTensor(dtype_of(message.dtype), tuple(message.shape), message.data if data is None else data)


def dtype_of(code: int) -> str:
    """The name of a dtype that travels as its number. Raises WireError for one that is none."""
    for known, name in _DTYPES.items():
        if known == code:
            return name
    raise WireError(f"a tensor has the unknown dtype {code}")


def encode_tensor(tensor: RawTensor) -> common_pb2.Tensor:
    return common_pb2.Tensor(dtype=DTYPE_CODES[tensor.dtype], shape=tensor.shape, data=bytes(tensor.data))


@lru_cache(maxsize=256)
def encode_tensor_head(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The message without its data."""
    return common_pb2.Tensor(dtype=DTYPE_CODES[dtype], shape=shape).SerializeToString()


@lru_cache(maxsize=1024)
def field_head(number: int, size: int) -> bytes:
    """What goes before so many bytes of a field of bytes, or of a message. number: up to 15."""
    head = bytearray((number << 3 | _BYTES,))
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head)


def encode_array(array: np.ndarray) -> common_pb2.Tensor:
    """A float32, int32, int64 or uint64 array."""
    return encode_tensor(RawTensor(str(array.dtype), array.shape, np.ascontiguousarray(array).tobytes()))


def decode_extend(message: verify_pb2.ExtendInput) -> ExtendColumns:
    """Raises WireError where columns, rows and tensor disagree."""
    return ExtendColumns(
        session=_column(message.session, np.uint64),
        round=_column(message.round, np.int64),
        base_committed_len=_column(message.base_committed_len, np.int64),
        num_tokens=_column(message.num_tokens_per_req, np.int64),
        propose=_column(message.num_tokens_for_logprob_per_req, np.int64) > 0,
        num_steps=_column(message.num_steps, np.int64),
        eagle_topk=_column(message.eagle_topk, np.int64),
        num_draft_tokens=_column(message.num_draft_tokens, np.int64),
        min_path_permille=_column(message.min_path_permille or [0] * len(message.session), np.int64),
        verified_id=_tokens(message.verified_id),
        hidden_states=decode_tensor(message.hidden_states),
    )


def encode_extend(columns: ExtendColumns, incarnation: int) -> verify_pb2.ExtendInput:
    message = verify_pb2.ExtendInput()
    fill_extend(message, columns, incarnation)
    return message


def fill_extend(message: verify_pb2.ExtendInput, columns: ExtendColumns, incarnation: int) -> None:
    """MUTATES an empty message where it lies: a message that is put into another one is copied, features and all."""
    num_tokens = columns.num_tokens.tolist()
    message.incarnation = incarnation
    message.session.extend(columns.session.tolist())
    message.round.extend(columns.round.tolist())
    message.base_committed_len.extend(columns.base_committed_len.tolist())
    message.verified_id.extend(columns.verified_id.tolist())
    message.accept_length.extend([max(count - 1, 0) for count in num_tokens])
    message.hidden_states.dtype = DTYPE_CODES[columns.hidden_states.dtype]
    message.hidden_states.shape.extend(columns.hidden_states.shape)
    message.hidden_states.data = bytes(columns.hidden_states.data)
    message.num_tokens_per_req.extend(num_tokens)
    message.num_tokens_for_logprob_per_req.extend(columns.propose.astype(np.int64).tolist())
    message.num_steps.extend(columns.num_steps.tolist())
    message.eagle_topk.extend(columns.eagle_topk.tolist())
    message.num_draft_tokens.extend(columns.num_draft_tokens.tolist())
    min_path_permille = columns.min_path_permille.tolist()
    if any(min_path_permille):
        message.min_path_permille.extend(min_path_permille)


def decode_verify(message: verify_pb2.VerifyInput) -> VerifyColumns:
    """Raises WireError where the columns disagree. The trees themselves are checked by ``trees()``."""
    return VerifyColumns(
        session=_column(message.session, np.uint64),
        round=_column(message.round, np.int64),
        base_committed_len=_column(message.base_committed_len, np.int64),
        num_tokens=_column(message.num_tokens_per_req, np.int64),
        draft_token=_tokens(message.draft_token),
        parents=_column(message.parents, np.int32),
    )


def encode_verify(columns: VerifyColumns, incarnation: int) -> verify_pb2.VerifyInput:
    message = verify_pb2.VerifyInput()
    fill_verify(message, columns, incarnation)
    return message


def fill_verify(message: verify_pb2.VerifyInput, columns: VerifyColumns, incarnation: int) -> None:
    """MUTATES an empty message where it lies."""
    message.incarnation = incarnation
    message.session.extend(columns.session.tolist())
    message.round.extend(columns.round.tolist())
    message.base_committed_len.extend(columns.base_committed_len.tolist())
    message.num_tokens_per_req.extend(columns.num_tokens.tolist())
    message.draft_token.extend(columns.draft_token.tolist())
    message.parents.extend(columns.parents.tolist())


def _column(values: Sequence[int], dtype: type) -> np.ndarray:
    return np.fromiter(values, dtype, len(values))


def _tokens(values: Sequence[int]) -> np.ndarray:
    """int32; a value of 2**31 or more is no token id."""
    tokens = np.fromiter(values, np.int64, len(values))
    if tokens.size and int(tokens.max()) >= 2**31:
        raise WireError(f"{int(tokens.max())} is no token id")
    return tokens.astype(np.int32)
