"""Columns and tensors survive the wire; what does not fit together is refused by name."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.codec import decode_sampling_params
from paceline.errors import UnsupportedFieldError, WireError
from paceline.round_codec import decode_extend, decode_tensor, decode_verify, encode_array, encode_extend, encode_verify
from paceline.rounds import ExtendColumns, RawTensor, VerifyColumns
from paceline.v1 import common_pb2, verify_pb2


def extend() -> ExtendColumns:
    """Two sessions of two and one rows; the first asks for a tree."""
    return ExtendColumns(
        session=np.array([7, 2**63], np.uint64),
        round=np.array([3, 4], np.int64),
        base_committed_len=np.array([10, 20], np.int64),
        num_tokens=np.array([2, 1], np.int64),
        propose=np.array([True, False]),
        num_steps=np.array([5, 0], np.int64),
        eagle_topk=np.array([4, 0], np.int64),
        num_draft_tokens=np.array([16, 0], np.int64),
        min_path_permille=np.array([30, 0], np.int64),
        verified_id=np.array([5, 6, 7], np.int32),
        hidden_states=RawTensor("float32", (3, 2), bytes(24)),
    )


def verify() -> VerifyColumns:
    """A tree of three nodes, and one of one."""
    return VerifyColumns(
        session=np.array([7, 8], np.uint64),
        round=np.array([3, 4], np.int64),
        base_committed_len=np.array([12, 20], np.int64),
        num_tokens=np.array([3, 1], np.int64),
        draft_token=np.array([5, 6, 7, 9], np.int32),
        parents=np.array([-1, 0, 0, -1], np.int32),
    )


def assert_same(ours: object, theirs: object) -> None:
    for name in ours.__slots__:  # type: ignore[attr-defined]
        one, other = getattr(ours, name), getattr(theirs, name)
        assert np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other, name


def test_rows_come_back_as_they_were_sent() -> None:
    message = encode_extend(extend(), incarnation=9)
    assert (message.incarnation, list(message.accept_length)) == (9, [1, 0])
    assert_same(decode_extend(verify_pb2.ExtendInput.FromString(message.SerializeToString())), extend())


def test_trees_come_back_as_they_were_sent() -> None:
    message = encode_verify(verify(), incarnation=9)
    columns = decode_verify(verify_pb2.VerifyInput.FromString(message.SerializeToString()))
    assert_same(columns, verify())
    assert [tree.parents.tolist() for tree in columns.trees()] == [[-1, 0, 0], [-1]]


@pytest.mark.parametrize(
    "column", ["round", "base_committed_len", "num_steps", "eagle_topk", "num_draft_tokens", "verified_id"]
)
def test_a_column_that_is_too_short_is_named(column: str) -> None:
    message = encode_extend(extend(), incarnation=9)
    del getattr(message, column)[-1:]
    with pytest.raises(WireError, match=column):
        decode_extend(message)


@pytest.mark.parametrize("column", ["round", "base_committed_len", "draft_token", "parents"])
def test_a_column_of_trees_that_is_too_short_is_named(column: str) -> None:
    message = encode_verify(verify(), incarnation=9)
    del getattr(message, column)[-1:]
    with pytest.raises(WireError, match=column):
        decode_verify(message)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data": bytes(11)}, "needs 12 bytes, not 11"),
        ({"shape": [4]}, "needs 16 bytes, not 12"),
        ({"shape": [2**31, 2**31, 2**31]}, "bytes, not 12"),
        ({"dtype": common_pb2.DTYPE_UNSPECIFIED}, "unknown dtype"),
    ],
)
def test_a_tensor_whose_bytes_do_not_fit_is_refused(change: dict[str, object], words: str) -> None:
    fields: dict[str, object] = {"dtype": common_pb2.DTYPE_FLOAT32, "shape": [3], "data": bytes(12)}
    with pytest.raises(WireError, match=words):
        decode_tensor(common_pb2.Tensor(**(fields | change)))  # type: ignore[arg-type]


def test_an_array_travels_with_its_dtype_and_shape() -> None:
    array = np.arange(6, dtype=np.int64).reshape(2, 3).T
    tensor = decode_tensor(encode_array(array))
    assert (tensor.dtype, tensor.shape) == ("int64", (3, 2))
    assert np.array_equal(np.frombuffer(tensor.data, np.int64).reshape(3, 2), array)


@pytest.mark.parametrize("field", ["n", "logprobs", "frequency_penalty", "presence_penalty", "repetition_penalty"])
def test_a_reserved_field_is_refused_even_with_its_neutral_value(field: str) -> None:
    message = common_pb2.SamplingParams(**{field: 0})  # type: ignore[arg-type]
    with pytest.raises(UnsupportedFieldError, match=f"{field} is not supported yet"):
        decode_sampling_params(message)


def test_unset_sampling_values_are_the_defaults_and_zero_is_a_value() -> None:
    params = decode_sampling_params(common_pb2.SamplingParams(top_k=0, stop_token_ids=[3]))
    assert (params.max_tokens, params.temperature, params.top_p, params.stop_token_ids) == (128, 0.0, 1.0, (3,))
