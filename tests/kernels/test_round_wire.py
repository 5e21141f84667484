"""A round's bytes read by C against what protobuf reads."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from engine.tree_columns import TreeColumns
from kernels.round_wire import (
    BASE_LEN,
    COMMITTED_LEN,
    NUM_ROWS,
    NUM_TABLE_ROWS,
    ROUND,
    SEAT,
    SESSION,
    SHAPES,
    ExtendBounds,
    ExtendFrame,
    answered_stream,
    read_extend,
    write_trees,
)
from paceline.errors import InvalidInputError
from paceline.round_codec import field_head
from paceline.types import TreeShape
from paceline.v1 import common_pb2, draft_pb2, verify_pb2
from tests.support.extension import needs_extension

pytestmark = needs_extension

VOCAB = 50_000
VERIFIED_ID = verify_pb2.ExtendInput.VERIFIED_ID_FIELD_NUMBER
COLUMNS = {ROUND: "round", BASE_LEN: "base_committed_len", NUM_ROWS: "num_tokens_per_req"}
SHAPE_NAMES = ("num_steps", "eagle_topk", "num_draft_tokens", "min_path_permille")


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
    for proposes in extend.num_tokens_for_logprob_per_req:
        numbers = random_shape(rng) if proposes else rng.integers(0, 2**32, 4).tolist()
        for name, value in zip(SHAPE_NAMES, numbers, strict=True):
            getattr(extend, name).append(value)
    if rng.random() < 0.5:
        extend.ClearField("min_path_permille")
    extend.verified_id.extend(rng.integers(0, VOCAB, rows).tolist())
    extend.hidden_states.dtype = common_pb2.DTYPE_BFLOAT16
    extend.hidden_states.shape.extend([rows, width])
    extend.hidden_states.data = rng.bytes(2 * rows * width)
    return message


def random_shape(rng: np.random.Generator) -> list[int]:
    """Of a tree."""
    topk = int(rng.integers(1, 9))
    num_steps = int(rng.integers(1, 2 + min(63, 64 // topk)))
    num_nodes = int(rng.integers(2, 1 + min(64, TreeShape.max_nodes(num_steps, topk))))
    return [num_steps, topk, num_nodes, int(rng.integers(0, 1000))]


def bounds_of(message: draft_pb2.SpeculateRequest) -> ExtendBounds:
    shape = message.extend.hidden_states.shape
    return ExtendBounds(VOCAB, message.extend.incarnation, shape[1] if len(shape) > 1 else 1)


def assert_same(frame: ExtendFrame, message: draft_pb2.SpeculateRequest) -> None:
    assert [field.name for field, _ in message.ListFields()] == ["extend"]
    extend, proposes = message.extend, [count > 0 for count in message.extend.num_tokens_for_logprob_per_req]
    assert frame.table.shape == (NUM_TABLE_ROWS, len(extend.session))
    assert frame.table[SESSION].view(np.uint64).tolist() == extend.session
    for row, name in COLUMNS.items():
        assert frame.table[row].tolist() == getattr(extend, name)
    assert frame.table[COMMITTED_LEN].tolist() == (frame.table[BASE_LEN] + frame.table[NUM_ROWS]).tolist()
    assert (frame.table[SEAT] == -1).all() and frame.table.flags.writeable
    for column, name in zip(frame.table[SHAPES:], SHAPE_NAMES, strict=True):
        numbers = getattr(extend, name) or [0] * len(proposes)
        assert column.tolist() == [n * asks for n, asks in zip(numbers, proposes, strict=True)]
    for numbers in frame.table[SHAPES:].T.tolist():
        assert not any(numbers) or TreeShape(*numbers)
    assert frame.tokens.tolist() == extend.verified_id and len(frame.tokens) == sum(extend.num_tokens_per_req)
    assert (frame.dtype, frame.features) == (extend.hidden_states.dtype, extend.hidden_states.data)
    assert extend.hidden_states.shape[0] == len(frame.tokens)


def test_a_sound_message_is_what_protobuf_reads() -> None:
    for seed in range(200):
        message = request(np.random.default_rng(seed))
        payload = bytearray(message.SerializeToString())
        frame = read_extend(payload, bounds_of(message))
        assert frame is not None
        assert_same(frame, message)
        assert frame.features.obj is payload


def test_of_broken_bytes_it_reads_what_protobuf_reads_or_nothing() -> None:
    read = 0
    for seed in range(3000):
        rng = np.random.default_rng(seed)
        message = request(rng)
        payload = bytearray(message.SerializeToString())
        kind = rng.integers(3)
        at = int(rng.integers(len(payload)))
        if kind == 0:
            payload[at] = int(rng.integers(256))
        elif kind == 1:
            del payload[at:]
        else:
            payload[at:at] = rng.bytes(int(rng.integers(1, 4)))
        bounds = bounds_of(message)
        frame = read_extend(payload, bounds)
        if frame is not None:
            read += 1
            again = draft_pb2.SpeculateRequest.FromString(bytes(payload))
            assert_same(frame, again)
            assert bounds_of(again) == bounds
    assert read > 100


def test_trees_are_written_as_protobuf_writes_them() -> None:
    for seed in range(100):
        rng = np.random.default_rng(seed)
        count = int(rng.integers(0, 6))
        num_nodes = rng.integers(1, 20, count)
        nodes = int(num_nodes.sum())
        table = rng.integers(0, 2**32, (NUM_TABLE_ROWS, count))
        table[SESSION] = (rng.integers(0, 2**64, count, np.uint64) >> np.uint64(rng.integers(0, 60))).view(np.int64)
        trees = TreeColumns(
            num_nodes=num_nodes,
            tokens=rng.integers(0, 2**31, nodes).astype(np.int32),
            parents=rng.integers(-1, 64, nodes).astype(np.int32),
        )
        incarnation = int([0, 1, 2**64 - 1][seed % 3])
        message = draft_pb2.SpeculateResponse()
        verify = message.verify
        verify.SetInParent()
        verify.incarnation = incarnation
        verify.session.extend(table[SESSION].view(np.uint64).tolist())
        verify.round.extend(table[ROUND].tolist())
        verify.base_committed_len.extend(table[COMMITTED_LEN].tolist())
        verify.num_tokens_per_req.extend(trees.num_nodes.tolist())
        verify.draft_token.extend(trees.tokens.tolist())
        verify.parents.extend(trees.parents.tolist())
        for rows in (table, table[: COMMITTED_LEN + 1]):
            assert write_trees(incarnation, rows, trees) == message.SerializeToString()


def test_a_table_of_too_few_rows_or_another_kind_is_refused() -> None:
    none = np.zeros(0, np.int32)
    trees = TreeColumns(np.zeros(0, np.int64), none, none)
    for table in (np.zeros((COMMITTED_LEN, 1), np.int64), np.zeros((3, 1), np.int32), np.zeros(3, np.int64)):
        with pytest.raises((ValueError, TypeError)):
            write_trees(1, table, trees)


def test_a_shape_is_read_where_a_tree_may_have_it() -> None:
    rng = np.random.default_rng(3)
    message = request(np.random.default_rng(7))
    extend, bounds = message.extend, bounds_of(message)
    read = 0
    for _ in range(3000):
        numbers = random_shape(rng)
        numbers[rng.integers(4)] = int(rng.choice([0, 1, 2, 3, 5, 9, 16, 63, 64, 65, 66, 999, 1000, 2**31, 2**32 - 1]))
        extend.min_path_permille[:] = [0] * len(extend.session)
        for name, value in zip(SHAPE_NAMES, numbers, strict=True):
            getattr(extend, name)[0] = value
        try:
            is_shape = bool(TreeShape(*numbers))
        except InvalidInputError:
            is_shape = False
        assert (read_extend(message.SerializeToString(), bounds) is not None) is is_shape
        read += is_shape
    assert 500 < read < 2500


def random_rows(rng: np.random.Generator, count: int, most: int) -> np.ndarray:
    """As a device leaves trees."""
    rows = rng.integers(-1, 1000, (count, 1 + 2 * most)).astype(np.int32)
    rows[:, 0] = rng.integers(0, most + 1, count)
    return rows


def test_trees_as_a_device_leaves_them_are_written_like_their_columns() -> None:
    rng = np.random.default_rng(4)
    for most in (1, 2, 16, 64):
        for count in (1, 5):
            rows = random_rows(rng, count, most)
            rows[0, 0] = most if count == 1 else 0
            table = rng.integers(0, 2**32, (NUM_TABLE_ROWS, count))
            trees = TreeColumns.of_rows(rows.tobytes(), count)
            assert trees.num_nodes.tolist() == rows[:, 0].tolist()
            assert trees.tokens.tolist() == [n for row in rows for n in row[1 : 1 + row[0]].tolist()]
            assert trees.parents.tolist() == [n for row in rows for n in row[1 + most : 1 + most + row[0]].tolist()]
            columns = TreeColumns(trees.num_nodes, trees.tokens, trees.parents)
            assert write_trees(5, table, trees) == write_trees(5, table, columns)


def test_rows_that_are_not_those_of_so_many_trees_are_refused() -> None:
    rng = np.random.default_rng(4)
    rows, table, streams = random_rows(rng, 3, 4), np.zeros((NUM_TABLE_ROWS, 3), np.int64), np.zeros(1, np.int64)
    whole, wrong = rows.tobytes(), []
    for count in (-1, 5, 2**31 - 1):
        rows[1, 0] = count
        wrong.append(rows.tobytes())
    for odd in (b"", whole[:-1], whole[:-4], whole[: 2 * 36], whole + bytes(12), *wrong):
        trees = TreeColumns.of_rows(odd, 3)
        with pytest.raises(ValueError, match="rows of 3 trees"):
            write_trees(1, table, trees)
        with pytest.raises(ValueError, match="rows of 3 trees"):
            answered_stream(table, trees, streams)
    assert write_trees(1, table, TreeColumns.of_rows(whole, 3))


def test_answers_are_of_one_stream_where_all_have_a_round_and_a_tree() -> None:
    rng = np.random.default_rng(5)
    seen = 0
    for _ in range(500):
        count = int(rng.integers(1, 5))
        rows = random_rows(rng, count, 4)
        rows[:, 0] = np.where(rng.random(count) < 0.1, 0, 1 + rows[:, 0] % 4)
        table = np.zeros((NUM_TABLE_ROWS, count), np.int64)
        table[ROUND] = np.where(rng.random(count) < 0.1, -1, rng.integers(0, 9, count))
        table[SEAT] = rng.permutation(9)[:count]
        streams = rng.choice([3, 4], 9, p=[0.9, 0.1])
        own = set(streams[table[SEAT]].tolist())
        is_one = len(own) == 1 and (rows[:, 0] > 0).all() and (table[ROUND] >= 0).all()
        as_rows = TreeColumns.of_rows(rows.tobytes(), count)
        for trees in (as_rows, TreeColumns(as_rows.num_nodes, as_rows.tokens, as_rows.parents)):
            assert answered_stream(table, trees, streams) == (min(own) if is_one else None)
        seen += is_one
        for seat in (-1, 9):
            table[SEAT, -1] = seat
            with pytest.raises(IndexError, match="no seat"):
                answered_stream(table, as_rows, streams)
    assert 100 < seen < 400


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
        lambda message: setattr(message.extend, "incarnation", message.extend.incarnation ^ 1),
        lambda message: message.extend.hidden_states.shape.__setitem__(1, message.extend.hidden_states.shape[1] + 1),
        lambda message: message.extend.hidden_states.shape.append(1),
        lambda message: message.extend.ClearField("hidden_states"),
        lambda message: message.extend.kv_indices.append(1),
    ],
)
def test_what_is_more_or_less_than_rows_and_sound_asks_is_left_to_protobuf(change) -> None:
    message = request(np.random.default_rng(7))
    assert message.extend.num_tokens_for_logprob_per_req[0]
    bounds = bounds_of(message)
    change(message)
    assert read_extend(message.SerializeToString(), bounds) is None


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
        assert (read_extend(payload, ExtendBounds(VOCAB, extend.incarnation, 1)) is not None) is is_whole


def test_a_column_that_claims_more_sessions_than_the_others_takes_no_memory() -> None:
    message = request(np.random.default_rng(7))
    bounds = bounds_of(message)
    for name in ("session", *COLUMNS.values(), *SHAPE_NAMES, "num_tokens_for_logprob_per_req"):
        extend = draft_pb2.SpeculateRequest.FromString(message.SerializeToString()).extend
        extend.hidden_states.ClearField("data")
        getattr(extend, name).extend([1] * 1_000_000)
        payload = draft_pb2.SpeculateRequest(extend=extend).SerializeToString()
        tracemalloc.start()
        assert read_extend(payload, bounds) is None
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 10_000
