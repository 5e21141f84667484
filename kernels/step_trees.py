"""A step's trees by calls of C: a fifteenth of what arrays take at 32 trees. Without the extension there is none."""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import numpy as np

from kernels.extension import EXTENSION
from kernels.ops import AttentionBatch, TreeBatch, WalkResult


class TreeTable(NamedTuple):
    """The trees of many requests, laid end to end, and the table of pages in which each request has a row."""

    tokens: np.ndarray  # int32 [nodes]
    parents: np.ndarray  # int32 [nodes], local index, root -1
    num_nodes: np.ndarray  # int64 [b]
    committed_len: np.ndarray  # int64 [b]
    page_table: np.ndarray  # int32 [requests, pages], contiguous
    table_rows: np.ndarray  # int64 [b]
    page_size: int


class TreeStep(NamedTuple):
    """Node i of a tree: position committed_len + depth(i), KV in the slot of position committed_len + i."""

    positions: np.ndarray  # int32 [nodes]
    slots: np.ndarray  # int64 [nodes]
    rows: np.ndarray  # int32 [nodes]: 0, 1, ...
    attention: AttentionBatch
    trees: TreeBatch


class CommitTable(NamedTuple):
    """A row for each request that may run; contiguous."""

    tokens: np.ndarray  # int32 [requests, context length]
    committed_len: np.ndarray  # int64 [requests]
    last_step: np.ndarray  # int64 [requests]


class CommitRows(NamedTuple):
    """The trees of a walk."""

    table_rows: np.ndarray  # int64 [b]
    base: np.ndarray  # int64 [b], position of each root
    allowed: np.ndarray  # int64 [b], tokens that the request may still have


class Advance(NamedTuple):
    """starts: of each tree's tokens in verified_id; is_full: whether a request has all that it may have."""

    starts: list[int]
    is_full: bool


class StepTrees:
    """Of the extension; thread-safe. ``load_step_trees`` makes it."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def plan(self, table: TreeTable, *, batch_invariant: bool = False) -> TreeStep:
        """Raises IndexError or ValueError for what are no trees, and for pages that the table does not have."""
        page_size, n, b = table.page_size, len(table.parents), len(table.num_nodes)
        num_pages = self._module.count_pages(table.committed_len, table.num_nodes, page_size)
        narrow = np.empty(4 * n + 4 * b + 2 + num_pages, np.int32)
        wide = np.empty(2 * n, np.int64)
        columns = table.committed_len, table.num_nodes, table.parents
        self._module.plan_trees(table.page_table, table.table_rows, *columns, narrow, wide, page_size)
        positions, q_indptr, at = narrow[:n], narrow[4 * n : 4 * n + b + 1], 4 * n + 2 * b + 2
        return TreeStep(
            positions=positions,
            slots=wide[:n],
            rows=narrow[3 * n : 4 * n],
            attention=AttentionBatch(
                q_indptr=q_indptr,
                prefix_len=narrow[at : at + b],
                local_len=narrow[at + b : at + 2 * b],
                page_indptr=narrow[at - b - 1 : at],
                page_ids=narrow[at + 2 * b :],
                is_causal=np.zeros(b, np.bool_),
                ancestors=wide[n:].view(np.uint64),
                page_size=page_size,
                batch_invariant=batch_invariant,
            ),
            trees=TreeBatch(q_indptr, table.tokens, positions, narrow[n : 2 * n], narrow[2 * n : 3 * n]),
        )

    def commit(self, table: CommitTable, rows: CommitRows, walk: WalkResult, *, step: int) -> Advance:
        """As ``commit_walk``."""
        return Advance(*self._module.commit_walk(*table, *rows, walk.accept_length, walk.verified_id, step))

    def stage(
        self, stage: np.ndarray, layout: np.ndarray, narrow: tuple[np.ndarray, ...], wide: tuple[np.ndarray, ...]
    ) -> None:
        """MUTATES the stage, int64: columns int32 (narrow), then int64 (wide), each padded. layout: int64 [3 a column],
        its start, its length and what pads it. Raises ValueError for what does not fit."""
        self._module.stage_columns(stage, layout, narrow, wide)


def commit_walk(table: CommitTable, rows: CommitRows, walk: WalkResult, *, step: int) -> Advance:
    """What a walk brings each request. MUTATES the table; tokens past its width are dropped."""
    counts = walk.accept_length.astype(np.int64) + 1
    starts = counts.cumsum() - counts
    places = (rows.base + 1 - starts).repeat(counts) + np.arange(len(walk.verified_id))
    is_there = places < table.tokens.shape[1]
    table.tokens[rows.table_rows.repeat(counts)[is_there], places[is_there]] = walk.verified_id[is_there]
    table.committed_len[rows.table_rows] = rows.base + counts
    table.last_step[rows.table_rows] = step
    return Advance(starts.tolist(), bool((counts >= rows.allowed).any()))


def load_step_trees() -> StepTrees | None:
    """None where the extension was not built, or does not load."""
    return None if EXTENSION is None else StepTrees(EXTENSION)
