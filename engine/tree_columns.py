"""TreeColumns: the trees of many sessions, laid end to end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from paceline.tree import DraftTree


@dataclass(frozen=True, slots=True, eq=False)
class TreeColumns:
    """Trees that this process grew, one a session or none. What it holds is never changed."""

    num_nodes: np.ndarray  # int64 [b]; 0: no tree
    tokens: np.ndarray  # int32 [sum of num_nodes], root first
    parents: np.ndarray  # int32 [sum of num_nodes], local indices, the root's -1

    @classmethod
    def none(cls, num_sessions: int) -> Self:
        """No tree for so many sessions."""
        return cls(np.zeros(num_sessions, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int32))

    @classmethod
    def of(cls, trees: Sequence[DraftTree | None]) -> Self:
        """One a session."""
        grown = [tree for tree in trees if tree is not None]
        if not grown:
            return cls.none(len(trees))
        return cls(
            num_nodes=np.array([0 if tree is None else tree.num_nodes for tree in trees], np.int64),
            tokens=np.concatenate([tree.tokens for tree in grown]),
            parents=np.concatenate([tree.parents for tree in grown]),
        )

    @classmethod
    def of_nodes(cls, nodes: np.ndarray) -> Self:
        """nodes: int32 [b, 1 + 2 n], as GrowingTrees.nodes says, which may change afterwards."""
        most = (nodes.shape[1] - 1) // 2
        counts = nodes[:, 0].astype(np.int64)
        tokens, parents = nodes[:, 1 : 1 + most], nodes[:, 1 + most :]
        if min(counts.tolist()) == most:
            return cls(counts, tokens.flatten(), parents.flatten())
        is_node = np.arange(most) < counts[:, None]
        return cls(counts, tokens[is_node], parents[is_node])

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """The sessions of all parts, in order. At least one part."""
        if len(parts) == 1:
            return parts[0]
        columns = ([getattr(part, name) for part in parts] for name in ("num_nodes", "tokens", "parents"))
        return cls(*(np.concatenate(column) for column in columns))

    def __len__(self) -> int:
        return len(self.num_nodes)

    def take(self, places: np.ndarray) -> TreeColumns:
        """Those of these sessions, in this order. places: int64."""
        counts = self.num_nodes[places]
        starts = (self.num_nodes.cumsum() - self.num_nodes)[places]
        nodes = np.arange(counts.sum()) + (starts - (counts.cumsum() - counts)).repeat(counts)
        return TreeColumns(counts, self.tokens[nodes], self.parents[nodes])

    def spread(self, places: np.ndarray, num_sessions: int) -> TreeColumns:
        """The same trees among more sessions: the i-th is that of session places[i], ascending; the others get none."""
        num_nodes = np.zeros(num_sessions, np.int64)
        num_nodes[places] = self.num_nodes
        return TreeColumns(num_nodes, self.tokens, self.parents)

    def trees(self) -> Iterator[DraftTree | None]:
        """One a session."""
        start = 0
        for count in self.num_nodes.tolist():
            stop = start + count
            yield DraftTree.grown(self.tokens[start:stop], self.parents[start:stop]) if count else None
            start = stop
