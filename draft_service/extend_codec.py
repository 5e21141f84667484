"""ExtendInput to columns and back by protobuf: what the extension leaves to it, and all without one."""

from __future__ import annotations

from typing import cast

import numpy as np

from paceline.errors import InvalidInputError
from paceline.round_codec import decode_extend, decode_tensor, encode_extend
from paceline.rounds import ExtendColumns
from paceline.types import tree_shape
from paceline.v1 import common_pb2, draft_pb2, verify_pb2

FLOATS: dict[int, str] = {
    common_pb2.DTYPE_FLOAT32: "float32",
    common_pb2.DTYPE_FLOAT16: "float16",
    common_pb2.DTYPE_BFLOAT16: "bfloat16",
}


def decode_round(message: verify_pb2.ExtendInput, features: memoryview | None, *, vocab_size: int) -> ExtendColumns:
    """features: the bytes of hidden_states; None: the message has them.

    Raises WireError or InvalidInputError for what no sound target sends.
    """
    sessions = message.session[:]
    permille = message.min_path_permille[:] or [0] * len(sessions)
    shapes = [message.num_steps[:], message.eagle_topk[:], message.num_draft_tokens[:], permille]
    places = [message.round[:], message.base_committed_len[:], message.num_tokens_per_req[:]]
    proposes = message.num_tokens_for_logprob_per_req[:]
    if set(map(len, (*shapes, *places, proposes))) != {len(sessions)}:
        return decode_extend(message)  # which says where
    _check_shapes(proposes, shapes)
    tokens = message.verified_id[:]
    if tokens and max(tokens) >= vocab_size:
        raise InvalidInputError(f"token id {max(tokens)} is outside the vocabulary of {vocab_size}")
    round_, base_len, num_rows, num_steps, topk, num_nodes, least = np.array(places + shapes, np.int64)
    return ExtendColumns(
        session=np.array(sessions, np.uint64),
        round=round_,
        base_committed_len=base_len,
        num_tokens=num_rows,
        propose=np.array(proposes, np.int64) > 0,
        num_steps=num_steps,
        eagle_topk=topk,
        num_draft_tokens=num_nodes,
        min_path_permille=least,
        verified_id=np.array(tokens, np.int32),
        # As good as bytes for whoever copies them.
        hidden_states=decode_tensor(message.hidden_states, cast("bytes | None", features)),
    )


def encode_round(columns: ExtendColumns, incarnation: int) -> bytes:
    """A SpeculateRequest of these alone, as a target of that incarnation sends it."""
    return draft_pb2.SpeculateRequest(extend=encode_extend(columns, incarnation)).SerializeToString()


def _check_shapes(proposes: list[int], shapes: list[list[int]]) -> None:
    """Of those that ask for a tree: the numbers of others mean nothing."""
    for asks, *numbers in set(zip(proposes, *shapes, strict=True)):
        if asks:
            tree_shape(*numbers)
