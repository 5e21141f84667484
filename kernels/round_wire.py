"""A round's messages from and to bytes, by a call of C each where the extension was built, and the table between them.

A round's table is int64 [NUM_TABLE_ROWS, b], a row each of what a round says of b sessions.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from kernels.extension import EXTENSION

SESSION = 0  # the bits of uint64
ROUND = 1
COMMITTED_LEN = 2  # once the rows are in: BASE_LEN and NUM_ROWS
ARRIVED_S = 3  # the bits of fp64
SEAT = 4  # where the session's columns stand; -1: it has none
BASE_LEN = 5
NUM_ROWS = 6
SHAPES = 7  # four rows: num_steps, eagle_topk, num_draft_tokens, min_path_permille; 0: no tree
NUM_TABLE_ROWS = SHAPES + 4


class ExtendBounds(NamedTuple):
    """What an ExtendInput must fit to."""

    vocab_size: int
    incarnation: int  # its target's
    width: int  # of the features, [rows, width]


class ExtendFrame(NamedTuple):
    """An ExtendInput. Shapes are those that trees may have, and 0 where a session asks for none."""

    table: np.ndarray  # of the round, writable; no session has a seat yet
    tokens: np.ndarray  # int32 [rows], all in the vocabulary
    dtype: int  # the wire's number
    features: memoryview  # where they lie in the payload


def read_extend(payload: bytes | bytearray, bounds: ExtendBounds) -> ExtendFrame | None:
    """Of a SpeculateRequest that holds an ExtendInput and nothing else, which fits, and whose columns and rows agree.
    None for all others, sound or not: protobuf is to judge them."""
    found = None if EXTENSION is None else EXTENSION.read_extend(payload, *bounds)
    if found is None:
        return None
    columns, count, rows, dtype, start, stop = found
    table = np.ndarray((NUM_TABLE_ROWS, count), np.int64, columns)
    tokens = np.ndarray(rows, np.int32, columns, NUM_TABLE_ROWS * count * 8)
    return ExtendFrame(table, tokens, dtype, memoryview(payload)[start:stop])


class GrownTrees(Protocol):
    """Trees of b sessions."""

    @property
    def rows(self) -> bytes | None:
        """int32 [b, 1 + 2 n], as GrowingTrees.nodes says. None: only the columns are there."""

    @property
    def num_nodes(self) -> np.ndarray:
        """int64 [b]."""

    @property
    def tokens(self) -> np.ndarray:
        """int32 [nodes], laid end to end."""

    @property
    def parents(self) -> np.ndarray:
        """int32 [nodes], local indices, the root's -1."""


def write_trees(incarnation: int, table: np.ndarray, trees: GrownTrees) -> bytes | None:
    """A SpeculateResponse that holds a tree for each session as its VerifyInput and nothing else. table: a round's, or
    its rows up to COMMITTED_LEN. None without the extension.

    Raises ValueError or TypeError where the arrays disagree.
    """
    if EXTENSION is None:
        return None
    payload: bytes
    if trees.rows is not None:
        payload = EXTENSION.write_rows(incarnation, table, trees.rows)
    else:
        payload = EXTENSION.write_verify(incarnation, table, trees.num_nodes, trees.tokens, trees.parents)
    return payload


def answered_stream(table: np.ndarray, trees: GrownTrees, streams: np.ndarray) -> int | None:
    """The stream of all sessions of a round's table, where that is one, and each has a round and gets a tree.

    streams: int64 [seats]. None without the C extension.
    """
    if EXTENSION is None:
        return None
    return EXTENSION.answered_stream(table, trees.num_nodes if trees.rows is None else trees.rows, streams)
