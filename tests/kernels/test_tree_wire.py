"""A round's messages by C: what protobuf writes, and what it would read."""

import numpy as np
import pytest

from kernels.tree_wire import TreeWire, load_tree_wire
from paceline.errors import WireError
from paceline.round_codec import decode_verify, encode_verify
from paceline.rounds import VerifyColumns
from paceline.tree import MAX_NODES, DraftTree
from paceline.types import TreeShape
from paceline.v1 import common_pb2, draft_pb2
from target_service.asks import Asks
from target_service.tree_nodes import nodes_of

VERIFY = draft_pb2.SpeculateResponse.VERIFY_FIELD_NUMBER
INCARNATION = 2**64 - 1
VOCAB = 200_000
DTYPE = common_pb2.DTYPE_FLOAT32


@pytest.fixture(scope="module")
def wire() -> TreeWire:
    found = load_tree_wire()
    if found is None:
        pytest.skip("the C extension was not built")
    return found


def message_of(*trees: tuple[list[int], list[int]]) -> draft_pb2.SpeculateResponse:
    sizes = [len(tokens) for tokens, _ in trees]
    columns = VerifyColumns(
        session=np.array([2**64 - 1 - number for number in range(len(trees))], np.uint64),
        round=np.arange(len(trees)) + 1,
        base_committed_len=np.arange(len(trees)) * 300,
        num_tokens=np.array(sizes),
        draft_token=np.array([token for tokens, _ in trees for token in tokens], np.int32),
        parents=np.array([parent for _, parents in trees for parent in parents], np.int32),
    )
    return draft_pb2.SpeculateResponse(verify=encode_verify(columns, INCARNATION))


def test_trees_are_read_as_protobuf_reads_them(wire):
    rng = np.random.default_rng(1)
    sizes = [1, 16, MAX_NODES, 2]
    parents = [[-1, *(int(rng.integers(0, node)) for node in range(1, size))] for size in sizes]
    tokens = [rng.permutation(VOCAB)[:size].tolist() for size in sizes]
    message = message_of(*zip(tokens, parents, strict=True))
    found = wire.read(message.SerializeToString(), VERIFY, VOCAB)
    expected = decode_verify(message.verify)
    assert found is not None
    assert found.incarnation == INCARNATION
    assert found.session == expected.session.tolist()
    assert found.round == expected.round.tolist()
    assert found.base_committed_len == expected.base_committed_len.tolist()
    assert found.nodes == [nodes_of(tree) for tree in expected.trees()]


@pytest.mark.parametrize(
    ("tokens", "parents"),
    [
        ([5, 1, 1, 2], [-1, 0, 1, 1]),
        (list(range(MAX_NODES)), list(range(-1, MAX_NODES - 1))),
        (list(range(MAX_NODES + 1)), list(range(-1, MAX_NODES))),
        ([5, 1, 1], [-1, 0, 0]),
        ([5, 1, 2, 1], [-1, 0, 0, 0]),
        ([5, 1], [-1, -1]),
        ([5, 1], [-1, 1]),
        ([5, 1], [0, 0]),
        ([], []),
    ],
)
def test_what_is_a_tree_is_what_the_constructor_takes(wire, tokens, parents):
    try:
        DraftTree(np.array(tokens), np.array(parents))
        is_tree = True
    except WireError:
        is_tree = False
    message = message_of(([7, 3], [-1, 0]), (tokens, parents))
    assert (wire.read(message.SerializeToString(), VERIFY, VOCAB) is not None) is is_tree


def test_what_is_not_trees_alone_is_left_to_protobuf(wire):
    message = message_of(([7, 3], [-1, 0]))
    payload = message.SerializeToString()
    assert wire.read(payload, VERIFY, 7) is None
    assert wire.read(payload + payload, VERIFY, VOCAB) is None
    for length in range(len(payload)):
        assert wire.read(payload[:length], VERIFY, VOCAB) is None
    for place in range(len(payload)):
        for change in (1, 0x80, 0xFF):
            changed = bytearray(payload)
            changed[place] ^= change
            found = wire.read(bytes(changed), VERIFY, VOCAB)
            if found is not None:
                again = draft_pb2.SpeculateResponse.FromString(bytes(changed)).verify
                assert found.nodes == [nodes_of(tree) for tree in decode_verify(again).trees()]
    message.status.round.append(1)
    assert wire.read(message.SerializeToString(), VERIFY, VOCAB) is None
    positions = message_of(([7, 3], [-1, 0]))
    positions.verify.positions.append(1)
    assert wire.read(positions.SerializeToString(), VERIFY, VOCAB) is None
    uneven = message_of(([7, 3], [-1, 0]))
    uneven.verify.round.append(1)
    assert wire.read(uneven.SerializeToString(), VERIFY, VOCAB) is None


SHAPE = TreeShape(3, 4, 8)


def asks_of(**changes: object) -> Asks:
    columns = {
        "session": [1, 2**64 - 1],
        "round": [127, 2**32 - 1],
        "base_committed_len": [0, 300],
        "num_tokens": [0, 2],
        "shapes": [SHAPE, TreeShape(5, 4, 16, 20)],
        "verified_id": [5, VOCAB],
        "dtype": "float32",
        "feature_size": 1,
        "features": [bytes(4), memoryview(bytes(4))],
    }
    return Asks(**columns | changes)


@pytest.mark.parametrize(
    "asks",
    [
        asks_of(),
        asks_of(shapes=[SHAPE, SHAPE]),
        asks_of(num_tokens=[0, 0], verified_id=[], features=[]),
        asks_of(num_tokens=[200, 1], verified_id=[7] * 201, features=[bytes(804)]),
    ],
)
def test_asks_are_written_as_protobuf_writes_them(wire, asks):
    data = b"".join(asks.features)
    message = draft_pb2.SpeculateRequest(extend={"incarnation": INCARNATION})
    extend, permille = message.extend, [shape.min_path_permille for shape in asks.shapes]
    extend.session.extend(asks.session)
    extend.round.extend(asks.round)
    extend.base_committed_len.extend(asks.base_committed_len)
    extend.verified_id.extend(asks.verified_id)
    extend.accept_length.extend(max(0, count - 1) for count in asks.num_tokens)
    extend.num_tokens_per_req.extend(asks.num_tokens)
    extend.num_tokens_for_logprob_per_req.extend([1, 1])
    for name in ("num_steps", "eagle_topk", "num_draft_tokens"):
        getattr(extend, name).extend(getattr(shape, name) for shape in asks.shapes)
    extend.min_path_permille.extend(permille if any(permille) else [])
    extend.hidden_states.MergeFrom(common_pb2.Tensor(dtype=DTYPE, shape=[len(asks.verified_id), 1], data=data))
    payload = wire.extend(INCARNATION, asks, dtype=DTYPE) + data
    assert draft_pb2.SpeculateRequest.FromString(payload) == message
    assert len(payload) == message.ByteSize() + (0 if data else 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"round": [1]},
        {"round": [1, 1.5]},
        {"round": (1, 2)},
        {"session": [1]},
        {"num_tokens": [0, 3]},
        {"num_tokens": [2**63, 2**63]},
        {"num_tokens": [-1, 3]},
        {"shapes": [SHAPE]},
        {"shapes": [SHAPE, None]},
        {"verified_id": ["1", 2]},
        {"features": [3]},
        {"features": b"12345678"},
    ],
)
def test_what_are_no_columns_of_asks_is_refused(wire, changes):
    with pytest.raises((TypeError, ValueError, AttributeError, SystemError)):
        wire.extend(1, asks_of(**changes), dtype=DTYPE)
