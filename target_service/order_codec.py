"""Orders for a draft to messages, and to a lane's frames."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from kernels.tree_wire import TreeWire
from paceline.codec import encode_sampling_params
from paceline.round_codec import encode_tensor, encode_tensor_head, field_head
from paceline.v1 import common_pb2, draft_pb2, verify_pb2
from target_service.asks import Asks, join
from target_service.draft_orders import DraftOrders, SyncOrder

_EXTEND = draft_pb2.SpeculateRequest.EXTEND_FIELD_NUMBER
_HIDDEN_STATES = verify_pb2.ExtendInput.HIDDEN_STATES_FIELD_NUMBER
_DATA = common_pb2.Tensor.DATA_FIELD_NUMBER
_COLUMNS = (
    "session",
    "round",
    "base_committed_len",
    "verified_id",
    "accept_length",
    "num_tokens_per_req",
    "num_tokens_for_logprob_per_req",
    "num_steps",
    "eagle_topk",
    "num_draft_tokens",
    "min_path_permille",
)
_NUMBERS = tuple(verify_pb2.ExtendInput.DESCRIPTOR.fields_by_name[name].number for name in _COLUMNS)


def encode_orders(orders: list[DraftOrders], incarnation: int) -> draft_pb2.SpeculateRequest | None:
    """The orders of one or more steps as one message; None where there is nothing to say by Speculate."""
    frame = encode_frame(orders, incarnation)
    return draft_pb2.SpeculateRequest.FromString(b"".join(frame)) if frame else None


def encode_frame(orders: list[DraftOrders], incarnation: int, wire: TreeWire | None = None) -> list[bytes | memoryview]:
    """The same message as it travels, in parts, the features where they lie; empty where there is nothing to say.

    The features are nearly all of a message, and in one of protobuf's they are copied twice. wire: None: protobuf
    writes the columns.
    """
    frame: list[bytes | memoryview] = []
    if any(part.opens or part.releases for part in orders):
        frame.append(_changes(orders).SerializeToString())
    asks = [part.asks for part in orders if part.asks is not None]
    if asks:
        frame += _extend(join(asks), incarnation, wire)
    return frame


def encode_sync(order: SyncOrder) -> draft_pb2.SyncRequest:
    return draft_pb2.SyncRequest(
        session=order.session,
        base_committed_len=order.base_committed_len,
        verified_id=order.verified_id.tolist(),
        hidden_states=encode_tensor(order.hidden_states),
    )


def _changes(orders: list[DraftOrders]) -> draft_pb2.SpeculateRequest:
    """Which sessions begin and end."""
    message = draft_pb2.SpeculateRequest()
    for part in orders:
        for order in part.opens:
            message.open.add(
                session=order.session,
                max_len=order.max_len,
                sampling_params=encode_sampling_params(order.params),
                traceparent=order.traceparent,
            )
        message.release.extend(part.releases)
    return message


def _extend(asks: Asks, incarnation: int, wire: TreeWire | None) -> list[bytes | memoryview]:
    """The message's field: the head of all but the features, and these."""
    columns = _columns(asks)
    if wire is None:
        named: dict[str, Any] = dict(zip(_COLUMNS, columns, strict=True))
        rest = verify_pb2.ExtendInput(incarnation=incarnation, **named).SerializeToString()
    else:
        rest = _begin(incarnation) + wire.pack(_NUMBERS, columns)
    num_bytes = sum(map(len, asks.features))
    tensor = encode_tensor_head(asks.dtype, (len(asks.verified_id), asks.feature_size)) + field_head(_DATA, num_bytes)
    rest += field_head(_HIDDEN_STATES, len(tensor) + num_bytes) + tensor
    return [field_head(_EXTEND, len(rest) + num_bytes) + rest, *asks.features]


@lru_cache(maxsize=16)
def _begin(incarnation: int) -> bytes:
    """The message without columns."""
    return verify_pb2.ExtendInput(incarnation=incarnation).SerializeToString()


def _columns(asks: Asks) -> tuple[list[int], ...]:
    """As _COLUMNS says; empty for zeros alone."""
    shapes, num_tokens = asks.shapes, asks.num_tokens
    min_path_permille = [shape.min_path_permille for shape in shapes]
    return (
        asks.session,
        asks.round,
        asks.base_committed_len,
        asks.verified_id,
        [count - 1 if count else 0 for count in num_tokens],
        num_tokens,
        [1] * len(shapes),
        [shape.num_steps for shape in shapes],
        [shape.eagle_topk for shape in shapes],
        [shape.num_draft_tokens for shape in shapes],
        min_path_permille if any(min_path_permille) else [],
    )
