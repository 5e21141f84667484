"""A round's messages by calls of C: columns to bytes, and trees from bytes. Without the extension there is none."""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

from kernels.extension import EXTENSION


class WireTrees(NamedTuple):
    """A VerifyInput. Lists have an entry a tree."""

    incarnation: int
    session: list[int]
    round: list[int]
    base_committed_len: list[int]
    nodes: list[bytes]  # int32 [2, n]: tokens, and parents as local indices


class TreeWire:
    """Of the extension; thread-safe. ``load_tree_wire`` makes it."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def pack(self, numbers: tuple[int, ...], columns: tuple[list[int], ...]) -> bytes:
        """A message whose repeated fields of those numbers, up to 15, are the columns; an empty one is left out."""
        packed: bytes = self._module.pack_columns(numbers, columns)
        return packed

    def read(self, payload: bytes, number: int, vocab_size: int) -> WireTrees | None:
        """Of a message that is a VerifyInput alone, in the field of that number, with sound trees of ids below
        vocab_size. None for any other, which protobuf is to judge."""
        found = self._module.read_trees(payload, number, vocab_size)
        return None if found is None else WireTrees(*found)


def load_tree_wire() -> TreeWire | None:
    """None where the extension was not built, or does not load."""
    return None if EXTENSION is None else TreeWire(EXTENSION)
