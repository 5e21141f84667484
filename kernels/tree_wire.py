"""A round's messages by calls of C: asks to bytes, and trees from bytes. Without the extension there is none."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple, Protocol

from kernels.extension import EXTENSION


class WireTrees(NamedTuple):
    """A VerifyInput. Lists have an entry a tree."""

    incarnation: int
    session: list[int]
    round: list[int]
    base_committed_len: list[int]
    nodes: list[bytes]  # int32 [2, n]: tokens, and parents as local indices


class WireAsks(Protocol):
    """Lists of ints, an entry a session, that each wants a tree of its shape."""

    session: list[int]
    round: list[int]
    base_committed_len: list[int]
    num_tokens: list[int]
    shapes: Any  # a list of TreeShape
    verified_id: list[int]  # flat
    feature_size: int
    features: list[bytes | memoryview]  # of bytes, end to end


class TreeWire:
    """Of the extension; thread-safe. ``load_tree_wire`` makes it."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def extend(self, incarnation: int, asks: WireAsks, *, dtype: int) -> bytes:
        """A SpeculateRequest that is an ExtendInput, up to the features' bytes, which end it. dtype: the wire's number.
        Raises ValueError where columns disagree."""
        message: bytes = self._module.write_extend(
            incarnation,
            asks.session,
            asks.round,
            asks.base_committed_len,
            asks.num_tokens,
            asks.shapes,
            asks.verified_id,
            dtype,
            asks.feature_size,
            asks.features,
        )
        return message

    def read(self, payload: bytes, number: int, vocab_size: int) -> WireTrees | None:
        """Of a message that is a VerifyInput alone, in the field of that number, with sound trees of ids below
        vocab_size. None for any other, which protobuf is to judge."""
        found = self._module.read_trees(payload, number, vocab_size)
        return None if found is None else WireTrees(*found)


def load_tree_wire() -> TreeWire | None:
    """None where the extension was not built, or does not load."""
    return None if EXTENSION is None else TreeWire(EXTENSION)
