"""Depths, masks and links of many trees at once: what a step derives from tokens and parents."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class TreeLinks:
    """Of the nodes of several trees laid end to end. Links are local to a node's own tree, -1 where none."""

    depths: np.ndarray  # [nodes] int32, root 0
    ancestors: np.ndarray  # [nodes] uint64, bit j set where local node j is the node or an ancestor of it
    first_child: np.ndarray  # [nodes] int32
    next_sibling: np.ndarray  # [nodes] int32


def derive_links(parents: np.ndarray, node_indptr: np.ndarray) -> TreeLinks:
    """parents: [nodes] local index, root -1, parents[i] < i; tree r is [node_indptr[r], node_indptr[r + 1])."""
    starts = np.repeat(node_indptr[:-1], np.diff(node_indptr))
    return links_of(parents, np.arange(len(parents)) - starts, starts)


def links_of(parents: np.ndarray, local: np.ndarray, starts: np.ndarray) -> TreeLinks:
    """As ``derive_links``, of nodes whose local index and whose tree's first node are known: int64 [nodes] each."""
    num_nodes = len(parents)
    is_child = parents >= 0
    if not is_child.any():
        return _links_of_roots(num_nodes)
    if (parents == local - 1).all():
        return _links_of_chains(local)
    flat = np.arange(num_nodes)
    up = np.where(is_child, parents + starts, flat)

    bits = np.uint64(1) << local.astype(np.uint64)
    ancestors = bits.copy()
    depths = np.zeros(num_nodes, np.int32)
    climbers = flat[is_child]
    at = climbers
    while climbers.size:
        at = up[at]
        depths[climbers] += 1
        ancestors[climbers] |= bits[at]
        going = is_child[at]
        climbers, at = climbers[going], at[going]

    children = flat[is_child]
    first_child = np.full(num_nodes, -1, np.int32)
    first_child[up[children][::-1]] = local[children][::-1]
    next_sibling = np.full(num_nodes, -1, np.int32)
    by_parent = children[np.argsort(up[children], kind="stable")]
    same = up[by_parent[1:]] == up[by_parent[:-1]]
    next_sibling[by_parent[:-1][same]] = local[by_parent[1:][same]]
    return TreeLinks(depths, ancestors, first_child, next_sibling)


def _links_of_roots(num_nodes: int) -> TreeLinks:
    none = np.full(num_nodes, -1, np.int32)
    return TreeLinks(np.zeros(num_nodes, np.int32), np.ones(num_nodes, np.uint64), none, none)


def _links_of_chains(local: np.ndarray) -> TreeLinks:
    none = np.full(len(local), -1, np.int32)
    first_child = none.copy()
    children = np.flatnonzero(local)
    first_child[children - 1] = local[children]
    ancestors = (np.uint64(2) << local.astype(np.uint64)) - np.uint64(1)  # of the 64th node: 0 - 1, all bits
    return TreeLinks(local.astype(np.int32), ancestors, first_child, none)
