"""A round's messages from and to bytes, by one call of C each where the extension was built."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernels.extension import EXTENSION

_NUM_COLUMNS = 8


class ExtendFrame(NamedTuple):
    """An ExtendInput as columns [b]; what a session that asks for no tree says of one is 0."""

    incarnation: int
    columns: np.ndarray  # int64 [8, b]: session (the bits of uint64), round, base_committed_len, rows, then ``shapes``
    tokens: np.ndarray  # int32 [rows], all in the vocabulary
    dtype: int  # the wire's number
    width: int  # of the features, [rows, width]
    features: memoryview  # where they lie in the payload
    is_one_shape: bool  # all sessions ask alike

    @property
    def shapes(self) -> np.ndarray:
        """int64 [4, b]: num_steps, eagle_topk, num_draft_tokens, min_path_permille."""
        return self.columns[4:]


def read_extend(payload: bytes | bytearray, vocab_size: int) -> ExtendFrame | None:
    """Of a SpeculateRequest that holds an ExtendInput and nothing else, whose columns and rows agree. None for all
    others, sound or not: protobuf is to judge them."""
    found = None if EXTENSION is None else EXTENSION.read_extend(payload, vocab_size)
    if found is None:
        return None
    incarnation, count, rows, dtype, width, start, stop, is_one_shape, columns = found
    numbers = np.frombuffer(columns, np.int64, _NUM_COLUMNS * count).reshape(_NUM_COLUMNS, count)
    tokens = np.frombuffer(columns, np.int32, rows, _NUM_COLUMNS * count * 8)
    return ExtendFrame(incarnation, numbers, tokens, dtype, width, memoryview(payload)[start:stop], bool(is_one_shape))


class TreeNumbers(NamedTuple):
    """Trees of sessions [b], laid end to end."""

    session: np.ndarray  # uint64
    round: np.ndarray  # int64
    base_committed_len: np.ndarray  # int64
    num_nodes: np.ndarray  # int64
    tokens: np.ndarray  # int32 [nodes]
    parents: np.ndarray  # int32 [nodes], local indices, the root's -1


def write_trees(incarnation: int, trees: TreeNumbers) -> bytes | None:
    """A SpeculateResponse that holds these as its VerifyInput and nothing else. None without the extension."""
    if EXTENSION is None:
        return None
    payload: bytes = EXTENSION.write_verify(incarnation, *trees)
    return payload
