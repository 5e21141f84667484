"""TreeSource: what the drafters have in common for a service."""

from __future__ import annotations

from typing import Protocol

from engine.extend_batch import ExtendBatch
from engine.tree_columns import TreeColumns


class PendingTrees(Protocol):
    """A drafter's work under way."""

    def is_ready(self) -> bool:
        """Whether ``trees`` would not wait for another device. True where the caller's thread computes them."""
        ...

    def trees(self) -> TreeColumns:
        """Waits for it: a tree for each session that asked for one, none for the others. To be called once."""
        ...


class TreeSource(Protocol):
    """A Drafter or a DeviceDrafter."""

    def begin(self, batch: ExtendBatch) -> PendingTrees:
        """Begins to write the rows of all sessions, and to grow a tree for each that asks for one.

        At most two may be under way at a time.
        """
        ...
