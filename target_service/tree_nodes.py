"""A tree as bytes, as a draft's message gives it and a step's plan takes it: int32 [2, n], tokens and parents.

Of a round of many requests each tree would cost several arrays otherwise, before anyone knows whether it is of use.
"""

from __future__ import annotations

import sys

import numpy as np

from paceline.tree import DraftTree

_NODE_BYTES = 8


def nodes_of(tree: DraftTree) -> bytes:
    return tree.tokens.tobytes() + tree.parents.tobytes()


def num_nodes(nodes: bytes) -> int:
    return len(nodes) // _NODE_BYTES


def root_of(nodes: bytes) -> int:
    return int.from_bytes(nodes[:4], sys.byteorder)


def columns_of(nodes: bytes) -> np.ndarray:
    """int32 [2, n]."""
    return np.frombuffer(nodes, np.int32).reshape(2, -1)


def first_nodes(nodes: bytes, count: int) -> bytes:
    """The tree's first nodes, at most count: parents come first, so they are a tree."""
    return columns_of(nodes)[:, :count].tobytes()
