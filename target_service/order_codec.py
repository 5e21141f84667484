"""Orders for a draft to messages, and to a lane's frames."""

from __future__ import annotations

from kernels.tree_wire import TreeWire
from paceline.codec import encode_sampling_params
from paceline.round_codec import DTYPE_CODES, encode_tensor, encode_tensor_head, field_head
from paceline.v1 import common_pb2, draft_pb2, verify_pb2
from target_service.asks import Asks, join
from target_service.draft_orders import DraftOrders, SyncOrder

_EXTEND = draft_pb2.SpeculateRequest.EXTEND_FIELD_NUMBER
_HIDDEN_STATES = verify_pb2.ExtendInput.HIDDEN_STATES_FIELD_NUMBER
_DATA = common_pb2.Tensor.DATA_FIELD_NUMBER


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
    parts: list[Asks] = []
    has_changes = False
    for part in orders:
        has_changes |= bool(part.opens or part.releases)
        if part.asks is not None:
            parts.append(part.asks)
    if has_changes:
        frame.append(_changes(orders).SerializeToString())
    if parts:
        asks = parts[0] if len(parts) == 1 else join(parts)
        if wire is None:
            frame.append(_extend(asks, incarnation))
        else:
            frame.append(wire.extend(incarnation, asks, dtype=DTYPE_CODES[asks.dtype]))
        frame += asks.features
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


def _extend(asks: Asks, incarnation: int) -> bytes:
    """The message's field, up to the features' bytes, by protobuf."""
    shapes, num_tokens = asks.shapes, asks.num_tokens
    min_path_permille = [shape.min_path_permille for shape in shapes]
    extend = verify_pb2.ExtendInput(
        incarnation=incarnation,
        session=asks.session,
        round=asks.round,
        base_committed_len=asks.base_committed_len,
        verified_id=asks.verified_id,
        accept_length=[count - 1 if count else 0 for count in num_tokens],
        num_tokens_per_req=num_tokens,
        num_tokens_for_logprob_per_req=[1] * len(shapes),
        num_steps=[shape.num_steps for shape in shapes],
        eagle_topk=[shape.eagle_topk for shape in shapes],
        num_draft_tokens=[shape.num_draft_tokens for shape in shapes],
        min_path_permille=min_path_permille if any(min_path_permille) else [],
    )
    num_bytes = sum(map(len, asks.features))
    tensor = encode_tensor_head(asks.dtype, (len(asks.verified_id), asks.feature_size)) + field_head(_DATA, num_bytes)
    rest = extend.SerializeToString() + field_head(_HIDDEN_STATES, len(tensor) + num_bytes) + tensor
    return field_head(_EXTEND, len(rest) + num_bytes) + rest
