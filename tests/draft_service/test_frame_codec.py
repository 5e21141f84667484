"""Frames to messages: what protobuf makes of them, less the copies of the features."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from google.protobuf.message import DecodeError

from draft_service.frame_codec import parse_round
from engine.wire import to_raw
from paceline.round_codec import encode_extend
from paceline.rounds import ExtendColumns
from paceline.v1 import common_pb2, draft_pb2, verify_pb2

WIDTH = 4096


def request(sessions: int) -> draft_pb2.SpeculateRequest:
    """Of numbers that take one byte and more."""
    column = np.arange(sessions, dtype=np.int64) * 1000
    features = torch.randn(2 * sessions, WIDTH, generator=torch.Generator().manual_seed(sessions)).bfloat16()
    columns = ExtendColumns(
        session=column.astype(np.uint64) << np.uint64(40),
        round=column,
        base_committed_len=column,
        num_tokens=np.full(sessions, 2),
        propose=np.ones(sessions, np.bool_),
        num_steps=column,
        eagle_topk=column,
        num_draft_tokens=column,
        min_path_permille=column,
        verified_id=np.arange(2 * sessions, dtype=np.int32),
        hidden_states=to_raw(features),
    )
    return draft_pb2.SpeculateRequest(extend=encode_extend(columns, 2**64 - 1))


def whole(payload: bytes | bytearray) -> draft_pb2.SpeculateRequest:
    """The message with its features."""
    found = parse_round(payload)
    if found.features is not None:
        assert not found.message.extend.hidden_states.data
        found.message.extend.hidden_states.data = bytes(found.features)
    return found.message


@pytest.mark.parametrize("sessions", [1, 8, 40])
def test_a_frame_is_the_message_that_protobuf_reads(sessions: int) -> None:
    message = request(sessions)
    assert whole(message.SerializeToString()) == message
    message.open.add(session=5, max_len=10**6)
    message.release.extend([1, 2**60])
    assert whole(bytearray(message.SerializeToString())) == message


def test_large_features_stay_where_they_lie() -> None:
    payload = bytearray(request(40).SerializeToString())
    found = parse_round(payload)
    assert found.features is not None
    assert found.features.obj is payload
    assert parse_round(request(1).SerializeToString()).features is None


def test_fields_in_another_order_or_twice_are_what_protobuf_makes_of_them() -> None:
    message = request(40)
    extend = draft_pb2.SpeculateRequest(extend={"round": [77]}).SerializeToString()
    last_first = draft_pb2.SpeculateRequest()
    last_first.extend.hidden_states.CopyFrom(message.extend.hidden_states)
    message.extend.ClearField("hidden_states")
    for payload in (
        last_first.SerializeToString() + message.SerializeToString(),
        extend + request(40).SerializeToString() + extend,
        request(40).SerializeToString() + request(9).SerializeToString(),
    ):
        assert whole(payload) == draft_pb2.SpeculateRequest.FromString(payload)


@pytest.mark.parametrize("last", [b"", b"1234", bytes(300_000)], ids=["empty", "short", "long"])
def test_of_features_that_come_twice_in_one_tensor_the_last_count(last: bytes) -> None:
    tensor = request(40).extend.hidden_states.SerializeToString()
    tensor += bytes([common_pb2.Tensor.DATA_FIELD_NUMBER << 3 | 2]) + encoded_length(len(last)) + last
    extend = request(40).extend
    extend.ClearField("hidden_states")
    field = verify_pb2.ExtendInput.HIDDEN_STATES_FIELD_NUMBER
    content = extend.SerializeToString() + encoded_length(field << 3 | 2) + encoded_length(len(tensor)) + tensor
    field = draft_pb2.SpeculateRequest.EXTEND_FIELD_NUMBER
    payload = encoded_length(field << 3 | 2) + encoded_length(len(content)) + content
    assert whole(payload) == draft_pb2.SpeculateRequest.FromString(payload)
    assert whole(payload).extend.hidden_states.data == last


def encoded_length(number: int) -> bytes:
    """As a varint."""
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def test_a_frame_of_other_large_fields_is_read() -> None:
    message = draft_pb2.SpeculateRequest(release=range(2**40, 2**40 + 20_000))
    assert whole(message.SerializeToString()) == message


def test_what_is_no_message_is_refused() -> None:
    payload = request(40).SerializeToString()
    for broken in (payload[:-1], payload + b"\x1a", b"\xff" * len(payload), bytes(len(payload))):
        with pytest.raises(DecodeError):
            parse_round(broken)


def test_bytes_at_random_are_refused_or_read_as_protobuf_reads_them() -> None:
    payload = bytearray(request(9).SerializeToString())
    rng = np.random.default_rng(0)
    for _ in range(1000):
        broken = bytearray(payload)
        broken[int(rng.integers(0, 400))] = int(rng.integers(0, 256))
        try:
            wanted = draft_pb2.SpeculateRequest.FromString(bytes(broken))
        except DecodeError:
            with pytest.raises(DecodeError):
                parse_round(broken)
        else:
            assert whole(broken) == wanted
