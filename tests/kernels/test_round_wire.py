"""A round's bytes read by C against what protobuf reads."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.round_wire import ExtendFrame, TreeNumbers, read_extend, write_trees
from paceline.round_codec import field_head
from paceline.v1 import common_pb2, draft_pb2, verify_pb2
from tests.support.extension import needs_extension

pytestmark = needs_extension

VOCAB = 50_000
VERIFIED_ID = verify_pb2.ExtendInput.VERIFIED_ID_FIELD_NUMBER
COLUMNS = ("session", "round", "base_committed_len", "num_tokens_per_req")
SHAPES = ("num_steps", "eagle_topk", "num_draft_tokens", "min_path_permille")


def request(rng: np.random.Generator) -> draft_pb2.SpeculateRequest:
    """Sound, of numbers of all sizes."""
    count = int(rng.integers(1, 6))
    num_rows = rng.integers(0, 4, count)
    rows, width = int(num_rows.sum()), int(rng.integers(1, 9))
    number = lambda limit, size: (rng.integers(0, limit, size) >> rng.integers(0, 20)).tolist()  # noqa: E731
    message = draft_pb2.SpeculateRequest()
    extend = message.extend
    extend.incarnation = int(rng.integers(0, 2**64, dtype=np.uint64))
    extend.session.extend(int(n) for n in rng.integers(0, 2**64, count, np.uint64) >> np.uint64(rng.integers(0, 60)))
    extend.round.extend(number(2**32, count))
    extend.base_committed_len.extend(number(2**32, count))
    extend.num_tokens_per_req.extend(num_rows.tolist())
    extend.accept_length.extend(num_rows.tolist())
    extend.num_tokens_for_logprob_per_req.extend(rng.integers(0, 2, count).tolist())
    for name in SHAPES if rng.random() < 0.5 else SHAPES[:3]:
        getattr(extend, name).extend([3] * count if rng.random() < 0.5 else number(2**10, count))
    extend.num_steps[:] = [max(1, steps) for steps in extend.num_steps]
    extend.verified_id.extend(rng.integers(0, VOCAB, rows).tolist())
    extend.hidden_states.dtype = common_pb2.DTYPE_BFLOAT16
    extend.hidden_states.shape.extend([rows, width])
    extend.hidden_states.data = rng.bytes(2 * rows * width)
    return message


def assert_same(frame: ExtendFrame, message: draft_pb2.SpeculateRequest) -> None:
    assert [field.name for field, _ in message.ListFields()] == ["extend"]
    extend, proposes = message.extend, [count > 0 for count in message.extend.num_tokens_for_logprob_per_req]
    assert frame.incarnation == extend.incarnation
    assert frame.columns[0].view(np.uint64).tolist() == extend.session
    for column, name in zip(frame.columns[1:4], COLUMNS[1:], strict=True):
        assert column.tolist() == getattr(extend, name)
    for column, name in zip(frame.shapes, SHAPES, strict=True):
        numbers = getattr(extend, name) or [0] * len(proposes)
        assert column.tolist() == [n * asks for n, asks in zip(numbers, proposes, strict=True)]
    assert frame.is_one_shape == (len(set(zip(*frame.shapes.tolist(), strict=True))) == 1)
    assert frame.tokens.tolist() == extend.verified_id and len(frame.tokens) == sum(extend.num_tokens_per_req)
    assert (frame.dtype, frame.features) == (extend.hidden_states.dtype, extend.hidden_states.data)
    assert extend.hidden_states.shape == [len(frame.tokens), frame.width]


def test_a_sound_message_is_what_protobuf_reads() -> None:
    for seed in range(200):
        message = request(np.random.default_rng(seed))
        payload = bytearray(message.SerializeToString())
        frame = read_extend(payload, VOCAB)
        assert frame is not None
        assert_same(frame, message)
        assert frame.features.obj is payload


def test_of_broken_bytes_it_reads_what_protobuf_reads_or_nothing() -> None:
    read = 0
    for seed in range(3000):
        rng = np.random.default_rng(seed)
        payload = bytearray(request(rng).SerializeToString())
        kind = rng.integers(3)
        at = int(rng.integers(len(payload)))
        if kind == 0:
            payload[at] = int(rng.integers(256))
        elif kind == 1:
            del payload[at:]
        else:
            payload[at:at] = rng.bytes(int(rng.integers(1, 4)))
        frame = read_extend(payload, VOCAB)
        if frame is not None:
            read += 1
            assert_same(frame, draft_pb2.SpeculateRequest.FromString(bytes(payload)))
    assert read > 100


def test_trees_are_written_as_protobuf_writes_them() -> None:
    for seed in range(100):
        rng = np.random.default_rng(seed)
        count = int(rng.integers(0, 6))
        num_nodes = rng.integers(1, 20, count)
        nodes = int(num_nodes.sum())
        trees = TreeNumbers(
            session=rng.integers(0, 2**64, count, np.uint64) >> np.uint64(rng.integers(0, 60)),
            round=rng.integers(0, 2**32, count),
            base_committed_len=rng.integers(0, 2**20, count),
            num_nodes=num_nodes,
            tokens=rng.integers(0, 2**31, nodes).astype(np.int32),
            parents=rng.integers(-1, 64, nodes).astype(np.int32),
        )
        incarnation = int([0, 1, 2**64 - 1][seed % 3])
        message = draft_pb2.SpeculateResponse()
        verify = message.verify
        verify.SetInParent()
        verify.incarnation = incarnation
        verify.session.extend(trees.session.tolist())
        verify.round.extend(trees.round.tolist())
        verify.base_committed_len.extend(trees.base_committed_len.tolist())
        verify.num_tokens_per_req.extend(trees.num_nodes.tolist())
        verify.draft_token.extend(trees.tokens.tolist())
        verify.parents.extend(trees.parents.tolist())
        assert write_trees(incarnation, trees) == message.SerializeToString()


@pytest.mark.parametrize(
    "change",
    [
        lambda message: message.release.append(3),
        lambda message: message.open.add(session=5),
        lambda message: message.hello.SetInParent(),
        lambda message: message.ClearField("extend"),
        lambda message: message.extend.session.append(1),
        lambda message: message.extend.num_steps.append(1),
        lambda message: message.extend.num_tokens_for_logprob_per_req.pop(),
        lambda message: message.extend.verified_id.append(VOCAB),
        lambda message: message.extend.num_steps.__setitem__(0, 0),
        lambda message: message.extend.hidden_states.shape.append(1),
        lambda message: message.extend.ClearField("hidden_states"),
        lambda message: message.extend.kv_indices.append(1),
    ],
)
def test_what_is_more_or_less_than_rows_and_sound_asks_is_left_to_protobuf(change) -> None:
    message = request(np.random.default_rng(7))
    message.extend.num_tokens_for_logprob_per_req[0] = 1
    change(message)
    assert read_extend(message.SerializeToString(), VOCAB) is None


def test_a_token_that_is_cut_off_is_left_to_protobuf() -> None:
    extend = request(np.random.default_rng(7)).extend
    tokens = field_head(VERIFIED_ID, 3) + b"\x01\x02\x03"
    extend.ClearField("verified_id")
    extend.ClearField("hidden_states")
    extend.hidden_states.CopyFrom(common_pb2.Tensor(dtype=common_pb2.DTYPE_BFLOAT16, shape=[3, 1], data=bytes(6)))
    extend.num_tokens_per_req[:] = [3] + [0] * (len(extend.session) - 1)
    for column, is_whole in ((tokens, True), (field_head(VERIFIED_ID, 4) + b"\x01\x02\x03\x80", False)):
        content = extend.SerializeToString() + column
        payload = field_head(draft_pb2.SpeculateRequest.EXTEND_FIELD_NUMBER, len(content)) + content
        assert (read_extend(payload, VOCAB) is not None) is is_whole
