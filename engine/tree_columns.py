"""TreeColumns: the trees of many sessions, laid end to end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np

from paceline.tree import DraftTree


class TreeColumns:
    """Trees that this process grew, one a session or none. What it holds is never changed.

    rows: int32 [b, 1 + 2 n], as GrowingTrees.nodes says, where a device left the trees so; else None. They become
    columns when somebody asks for these, which no answer has to wait for: arrays take 20 to 60 us of a cold thread.
    """

    __slots__ = ("_columns", "_size", "rows")

    def __init__(self, num_nodes: np.ndarray, tokens: np.ndarray, parents: np.ndarray) -> None:
        self.rows: bytes | None = None
        self._size = len(num_nodes)
        self._columns: _Columns | None = _Columns(num_nodes, tokens, parents)

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
    def of_rows(cls, rows: bytes, num_sessions: int) -> Self:
        """A tree for each session, at least one of them."""
        trees = cls.__new__(cls)
        trees.rows, trees._size, trees._columns = rows, num_sessions, None
        return trees

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """The sessions of all parts, in order. At least one part."""
        if len(parts) == 1:
            return parts[0]
        columns = ([getattr(part, name) for part in parts] for name in ("num_nodes", "tokens", "parents"))
        return cls(*(np.concatenate(column) for column in columns))

    def __len__(self) -> int:
        return self._size

    @property
    def num_nodes(self) -> np.ndarray:
        """int64 [b]; 0: no tree."""
        return self._split().num_nodes

    @property
    def tokens(self) -> np.ndarray:
        """int32 [sum of num_nodes], root first."""
        return self._split().tokens

    @property
    def parents(self) -> np.ndarray:
        """int32 [sum of num_nodes], local indices, the root's -1."""
        return self._split().parents

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

    def _split(self) -> _Columns:
        if self._columns is None:
            assert self.rows is not None
            self._columns = _split(np.frombuffer(self.rows, np.int32).reshape(self._size, -1))
        return self._columns


class _Columns(NamedTuple):
    num_nodes: np.ndarray
    tokens: np.ndarray
    parents: np.ndarray


def _split(rows: np.ndarray) -> _Columns:
    most = (rows.shape[1] - 1) // 2
    counts = rows[:, 0].astype(np.int64)
    tokens, parents = rows[:, 1 : 1 + most], rows[:, 1 + most :]
    if min(counts.tolist()) == most:
        return _Columns(counts, tokens.flatten(), parents.flatten())
    is_node = np.arange(most) < counts[:, None]
    return _Columns(counts, tokens[is_node], parents[is_node])
