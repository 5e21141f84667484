"""DraftTree: a proposal of at most 64 nodes, from which masks, depths and links are derived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.errors import WireError

MAX_NODES = 64

_FEW_TREES = 8  # up to here they are checked faster one by one


@dataclass(frozen=True, slots=True, eq=False)
class DraftTree:
    """Node 0 is the newest sampled token, at position L, with no KV yet.

    tokens: int32 [n]; parents: int32 [n], parents[0] == -1 and parents[i] < i. Siblings carry distinct
    tokens. Raises WireError for anything else.
    """

    tokens: np.ndarray
    parents: np.ndarray

    def __post_init__(self) -> None:
        tokens = np.ascontiguousarray(self.tokens, dtype=np.int32)
        parents = np.ascontiguousarray(self.parents, dtype=np.int32)
        object.__setattr__(self, "tokens", tokens)
        object.__setattr__(self, "parents", parents)
        _check(tokens, parents)

    @classmethod
    def grown(cls, tokens: np.ndarray, parents: np.ndarray) -> DraftTree:
        """A tree that this process grew, int32 as above: taken as it is, without the constructor's checks."""
        tree = object.__new__(cls)
        object.__setattr__(tree, "tokens", tokens)
        object.__setattr__(tree, "parents", parents)
        return tree

    @classmethod
    def single(cls, token: int) -> DraftTree:
        """The one-node tree of plain decoding."""
        return cls(np.array([token], np.int32), np.array([-1], np.int32))

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> DraftTree:
        """A chain, root first."""
        return cls(np.asarray(tokens, np.int32), np.arange(-1, len(tokens) - 1, dtype=np.int32))

    @classmethod
    def many(cls, tokens: np.ndarray, parents: np.ndarray, num_nodes: np.ndarray) -> list[DraftTree]:
        """Trees laid end to end: int32 [nodes], int32 [nodes] local indices, int64 [b]. Raises WireError for the first
        that is none.

        Many are checked all at once: one by one 256 trees of 8 nodes took 3 ms (`python -m bench.host_path`).
        """
        stops = num_nodes.cumsum()
        bounds = list(zip((stops - num_nodes).tolist(), stops.tolist(), strict=True))
        if len(bounds) < _FEW_TREES or not _are_trees(tokens, parents, num_nodes):
            return [cls(tokens[start:stop], parents[start:stop]) for start, stop in bounds]
        tokens, parents = np.ascontiguousarray(tokens, np.int32), np.ascontiguousarray(parents, np.int32)
        return [_checked(tokens[start:stop], parents[start:stop]) for start, stop in bounds]

    @property
    def num_nodes(self) -> int:
        return len(self.tokens)

    def depths(self) -> np.ndarray:
        """int32 [n], root 0."""
        depths = np.zeros(self.num_nodes, np.int32)
        for node in range(1, self.num_nodes):
            depths[node] = depths[self.parents[node]] + 1
        return depths

    def ancestors(self) -> np.ndarray:
        """uint64 [n]: bit j of entry i is set where j is i or an ancestor of i."""
        masks = np.zeros(self.num_nodes, np.uint64)
        for node in range(self.num_nodes):
            mask = 1 << node
            if node:
                mask |= int(masks[self.parents[node]])
            masks[node] = mask
        return masks

    def first_child(self) -> np.ndarray:
        """int32 [n], local index of the first child, -1 where none."""
        links = np.full(self.num_nodes, -1, np.int32)
        for node in range(self.num_nodes - 1, 0, -1):
            links[self.parents[node]] = node
        return links

    def next_sibling(self) -> np.ndarray:
        """int32 [n], local index of the next node with the same parent, -1 where none."""
        links = np.full(self.num_nodes, -1, np.int32)
        latest = np.full(self.num_nodes, -1, np.int32)
        for node in range(self.num_nodes - 1, 0, -1):
            parent = self.parents[node]
            links[node] = latest[parent]
            latest[parent] = node
        return links


def _checked(tokens: np.ndarray, parents: np.ndarray) -> DraftTree:
    tree = object.__new__(DraftTree)
    object.__setattr__(tree, "tokens", tokens)
    object.__setattr__(tree, "parents", parents)
    return tree


def _are_trees(tokens: np.ndarray, parents: np.ndarray, num_nodes: np.ndarray) -> bool:
    """Whether each of them would pass ``_check``."""
    if num_nodes.size == 0 or int(num_nodes.min()) < 1 or int(num_nodes.max()) > MAX_NODES:
        return False
    tree = np.arange(len(num_nodes)).repeat(num_nodes)
    local = np.arange(len(tokens)) - (num_nodes.cumsum() - num_nodes)[tree]
    in_order = (parents < local) & (parents >= np.minimum(local - 1, 0))  # -1 at roots alone
    if not in_order.all() or int(tokens.min()) < 0:
        return False
    siblings = (tree * (MAX_NODES + 1) + parents + 1) * 2**31 + tokens
    return len(np.unique(siblings)) == len(siblings)


def _check(tokens: np.ndarray, parents: np.ndarray) -> None:
    num_nodes = tokens.size
    if tokens.ndim != 1 or parents.shape != tokens.shape:
        raise WireError(f"a tree needs one parent a token: {tokens.shape} tokens, {parents.shape} parents")
    if not 1 <= num_nodes <= MAX_NODES:
        raise WireError(f"a tree has {num_nodes} nodes; it must have 1 to {MAX_NODES}")
    # Lists: at these sizes array operations take two to ten times as long.
    token_list, parent_list = tokens.tolist(), parents.tolist()
    if parent_list[0] != -1:
        raise WireError(f"the root's parent is {parent_list[0]}; it must be -1")
    if min(token_list) < 0:
        raise WireError("a tree holds a negative token id")
    if not all(0 <= parent < node for node, parent in enumerate(parent_list[1:], start=1)):
        raise WireError("a node's parent must come before it")
    if len(set(zip(parent_list, token_list, strict=True))) != num_nodes:
        raise WireError("two siblings carry the same token")
