"""Orders as frames: what protobuf itself would write, and what a draft cuts without a copy."""

import numpy as np
import pytest

from draft_service.frame_codec import parse_round
from kernels.tree_wire import load_tree_wire
from paceline.codec import encode_sampling_params
from paceline.round_codec import encode_extend
from paceline.rounds import ExtendColumns, RawTensor
from paceline.types import SamplingParams, TreeShape
from paceline.v1 import draft_pb2
from target_service.asks import Asks
from target_service.draft_orders import DraftOrders, OpenOrder
from target_service.order_codec import encode_frame, encode_orders
from target_service.round_lane import RoundLanes


def asks(sessions: list[int], *, shape: TreeShape, feature_size: int) -> Asks:
    """Of no row for the first session, one for the second, and so on."""
    counts = list(range(len(sessions)))
    rows = sum(counts)
    return Asks(
        session=sessions,
        round=[300 + number for number in range(len(sessions))],
        base_committed_len=[7] * len(sessions),
        num_tokens=counts,
        shapes=[shape] * len(sessions),
        verified_id=list(range(rows)),
        dtype="float32",
        feature_size=feature_size,
        features=[memoryview(bytes([number]) * 4 * feature_size) for number in range(rows)],
    )


def columns(of: Asks) -> ExtendColumns:
    size = len(of.session)
    (shape,) = set(of.shapes)
    return ExtendColumns(
        session=np.array(of.session, np.uint64),
        round=np.array(of.round),
        base_committed_len=np.array(of.base_committed_len),
        num_tokens=np.array(of.num_tokens),
        propose=np.ones(size, np.bool_),
        num_steps=np.full(size, shape.num_steps),
        eagle_topk=np.full(size, shape.eagle_topk),
        num_draft_tokens=np.full(size, shape.num_draft_tokens),
        min_path_permille=np.full(size, shape.min_path_permille),
        verified_id=np.array(of.verified_id, np.int32),
        hidden_states=RawTensor("float32", (len(of.verified_id), of.feature_size), b"".join(of.features)),
    )


@pytest.mark.parametrize("shape", [TreeShape(3, 1, 4), TreeShape(5, 4, 16, 20)])
@pytest.mark.parametrize("feature_size", [16, 8192])
@pytest.mark.parametrize("wire", [None, load_tree_wire()])
def test_a_frame_is_the_message(shape, feature_size, wire):
    of = asks([2**63, 5, 6], shape=shape, feature_size=feature_size)
    orders = [DraftOrders(1, opens=[OpenOrder(9, 50, SamplingParams(seed=4))], releases=[1, 2], asks=of)]
    expected = draft_pb2.SpeculateRequest(extend=encode_extend(columns(of), 11), release=[1, 2])
    expected.open.add(session=9, max_len=50, sampling_params=encode_sampling_params(SamplingParams(seed=4)))
    frame = b"".join(encode_frame(orders, 11, wire))
    assert draft_pb2.SpeculateRequest.FromString(frame) == expected
    assert encode_orders(orders, 11) == expected
    found = parse_round(frame)
    if feature_size == 8192:
        assert found.features == b"".join(of.features)
    else:
        assert found.message == expected


def test_asks_of_two_steps_are_one_message():
    shape = TreeShape(3, 1, 4)
    first, second = asks([1, 2], shape=shape, feature_size=16), asks([3, 4], shape=shape, feature_size=16)
    message = encode_orders([DraftOrders(1, asks=first), DraftOrders(1, releases=[4]), DraftOrders(1, asks=second)], 11)
    assert message.release == [4]
    assert message.extend.session == [1, 2, 3, 4]
    assert message.extend.num_tokens_per_req == [0, 1, 0, 1]
    assert message.extend.hidden_states.shape == [2, 16]
    assert message.extend.hidden_states.data == b"".join(first.features + second.features)


def test_orders_without_anything_for_the_stream_make_no_message():
    assert encode_orders([DraftOrders(1, reset="why")], 11) is None


def test_orders_that_no_lane_takes_have_features_of_their_own():
    memory = bytearray(range(16))
    of = Asks(features=[memoryview(memory)[:4], memoryview(memory)[12:]])
    (left,) = RoundLanes(lambda source: None).send({"draft:1": DraftOrders(1, asks=of)}).values()
    memory[:] = bytes(16)
    assert b"".join(left.asks.features) == bytes([0, 1, 2, 3, 12, 13, 14, 15])
