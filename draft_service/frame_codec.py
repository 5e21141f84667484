"""A target's frames to messages, without a copy of the features, which are nearly all of a frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, cast

from paceline.v1 import common_pb2, draft_pb2, verify_pb2

_WORTH_CUTTING = 64 << 10  # bytes: below, protobuf's two copies take less than looking for the features
_EXTEND = draft_pb2.SpeculateRequest.EXTEND_FIELD_NUMBER
_HIDDEN_STATES = verify_pb2.ExtendInput.HIDDEN_STATES_FIELD_NUMBER
_DATA = common_pb2.Tensor.DATA_FIELD_NUMBER
_VARINT, _BYTES = 0, 2  # wire types
_FIXED_SIZES = {1: 8, 5: 4}


@dataclass(frozen=True, slots=True)
class RoundFrame:
    """A message. features: the bytes of its hidden_states, where they lie in the frame; None: in the message itself."""

    message: draft_pb2.SpeculateRequest
    features: memoryview | None


def parse_round(payload: bytes | bytearray) -> RoundFrame:
    """Raises DecodeError for what is no SpeculateRequest. The features are the payload's memory."""
    cut = _cut(payload) if len(payload) > _WORTH_CUTTING else None
    return cut or RoundFrame(draft_pb2.SpeculateRequest.FromString(cast("bytes", payload)), None)


def _cut(payload: bytes | bytearray) -> RoundFrame | None:
    """None where there are no features, and for what protobuf is to judge: fields that come twice, or are unsound."""
    whole = _Span(0, 0, len(payload))
    try:
        extend = _find(payload, whole, _EXTEND)
        tensor = _find(payload, extend, _HIDDEN_STATES)
        data = _find(payload, tensor, _DATA)
    except (_NotFoundError, IndexError):
        return None
    if _comes_again(payload, _Span(data.tag, data.stop, tensor.stop)):
        return None
    view = memoryview(payload)
    message = draft_pb2.SpeculateRequest()
    message.MergeFromString(_without(view, whole, extend))
    if message.HasField("extend"):
        return None
    message.extend.MergeFromString(_without(view, extend, tensor))
    if message.extend.HasField("hidden_states"):
        return None
    message.extend.hidden_states.MergeFromString(_without(view, tensor, data))
    return RoundFrame(message, view[data.start : data.stop])


class _Span(NamedTuple):
    """A field of bytes: its tag's place, and its content."""

    tag: int
    start: int
    stop: int


def _without(view: memoryview, outer: _Span, inner: _Span) -> bytes:
    """The outer field's content less the inner field."""
    return b"".join((view[outer.start : inner.tag], view[inner.stop : outer.stop]))


class _NotFoundError(Exception):
    """Of a field that was looked for."""


def _comes_again(payload: bytes | bytearray, rest: _Span) -> bool:
    """Whether there are other features behind the first: the last are those that count, empty ones as well."""
    try:
        _find(payload, rest, _DATA)
    except (_NotFoundError, IndexError):
        return False
    return True


def _find(payload: bytes | bytearray, outer: _Span, number: int) -> _Span:
    """The first field with that number in the outer's content. Raises _NotFoundError or IndexError."""
    at, stop = outer.start, outer.stop
    while at < stop:
        tag_at = at
        tag, at = _varint(payload, at)
        kind = tag & 7
        if kind == _BYTES:
            size, at = _varint(payload, at)
            if at + size > stop:
                break
            if tag >> 3 == number:
                return _Span(tag_at, at, at + size)
            at += size
        elif kind == _VARINT:
            _, at = _varint(payload, at)
        elif kind in _FIXED_SIZES:
            at += _FIXED_SIZES[kind]
        else:
            break
    raise _NotFoundError


def _varint(payload: bytes | bytearray, at: int) -> tuple[int, int]:
    """Its value, and the place behind it."""
    byte = payload[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while byte >= 0x80:
        if shift > 63:
            raise _NotFoundError
        at += 1
        byte = payload[at]
        value |= (byte & 0x7F) << shift
        shift += 7
    return value, at + 1
