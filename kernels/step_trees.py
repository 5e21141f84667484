"""A step's trees by calls of C: a fifteenth of what arrays take at 32 trees. Without the extension there is none."""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import numpy as np

from kernels.extension import EXTENSION
from kernels.ops import AttentionBatch, TreeBatch, WalkResult

# Rows of RequestTable.facts.
COMMITTED_LEN = 0
PENDING_LEN = 1  # tokens that the step under way commits
PENDING_TREE = 2  # of that step, which draws the newest of them; -1: the newest token is known
LIMIT = 3  # tokens that the request may hold
LAST_STEP = 4  # the step that it last took part in
NUM_FACTS = 5

# Rows of a step's heads: of each tree the request's row of the table, the root's position, and how many tokens the
# request may still have.
HEAD_ROW = 0
HEAD_BASE = 1
HEAD_ALLOWED = 2


class RequestTable(NamedTuple):
    """A row for each request that may run; contiguous."""

    tokens: np.ndarray  # int32 [requests, context length]
    page_ids: np.ndarray  # int32 [requests, pages]
    facts: np.ndarray  # int64 [NUM_FACTS, requests]


class TreeStep(NamedTuple):
    """Node i of a tree: position committed_len + depth(i), KV in the slot of position committed_len + i."""

    heads: np.ndarray  # int64 [3, b]
    positions: np.ndarray  # int32 [nodes]
    slots: np.ndarray  # int64 [nodes]
    rows: np.ndarray  # int32 [nodes]: 0, 1, ...
    attention: AttentionBatch
    trees: TreeBatch


class Advance(NamedTuple):
    """What a walk brought. Lists: arrays of a few entries take longer to look into."""

    starts: list[int]  # of each tree's tokens
    is_full: bool  # whether a request has all that it may have
    path: list[int]  # accepted_indices
    tokens: list[int]  # verified_id


class _Laid(NamedTuple):
    """A step over its memory."""

    arena: bytearray
    num_nodes: int
    num_pages: int
    step: TreeStep


class StepTrees:
    """Of the extension. ``load_step_trees`` makes it. ``lay_out`` and ``plan`` are one thread's."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spare: _Laid | None = None

    def lay_out(self, base: np.ndarray, num_nodes: np.ndarray, *, page_size: int) -> None:
        """What the next ``plan`` is expected to be of: so many nodes behind each of these positions, int64 [b]. Its
        arrays are made now, which take most of its time."""
        b, n = len(base), int(num_nodes.sum())
        num_pages = int(((base + num_nodes + (page_size - 1)) // page_size).sum())
        arena = bytearray(_num_bytes(b, n, num_pages))
        self._spare = _Laid(arena, n, num_pages, _views(arena, (b, n, num_pages), page_size))

    def plan(self, table: RequestTable, rows: list[int], trees: list[bytes], *, page_size: int) -> TreeStep:
        """The trees of the requests in these rows of the table: int32 [2, n], tokens and parents, local indices, the
        root's -1. Of requests past the last tree one node each: the newest token, or -1 - i where tree i of the step
        under way is going to draw it. Raises IndexError or ValueError for what are no trees, and for pages or tokens
        that the table does not have."""
        spare, self._spare = self._spare, None
        memory = None if spare is None else spare.arena
        arena, n, num_pages = self._module.plan_step(*table, page_size, rows, trees, memory)
        if spare is not None and arena is memory:
            step = spare.step
            if (spare.num_nodes, spare.num_pages) == (n, num_pages) and step.attention.page_size == page_size:
                return step
        return _views(arena, (len(rows), n, num_pages), page_size)

    def commit(self, table: RequestTable, heads: np.ndarray, walk: WalkResult, *, step: int) -> Advance:
        """As ``commit_walk``."""
        columns = walk.accept_length, walk.verified_id, walk.accepted_indices
        return Advance(*self._module.commit_walk(*table, heads, *columns, step))

    def stage(
        self, stage: np.ndarray, layout: np.ndarray, narrow: tuple[np.ndarray, ...], wide: tuple[np.ndarray, ...]
    ) -> None:
        """MUTATES the stage, int64: columns int32 (narrow), then int64 (wide), each padded. layout: int64 [3 a column],
        its start, its length and what pads it. Raises ValueError for what does not fit."""
        self._module.stage_columns(stage, layout, narrow, wide)


def _num_bytes(num_trees: int, num_nodes: int, num_pages: int) -> int:
    return 8 * (3 * num_trees + 2 * num_nodes) + 4 * (5 * num_nodes + 4 * num_trees + 2 + num_pages) + num_trees


def _views(arena: bytearray, sizes: tuple[int, int, int], page_size: int) -> TreeStep:
    """sizes: trees, nodes and pages."""
    b, n, num_pages = sizes
    wide = np.ndarray(3 * b + 2 * n, np.int64, arena)
    narrow = np.ndarray(5 * n + 4 * b + 2 + num_pages, np.int32, arena, wide.nbytes)
    positions, q_indptr, at = narrow[n : 2 * n], narrow[5 * n : 5 * n + b + 1], 5 * n + 2 * b + 2
    return TreeStep(
        wide[: 3 * b].reshape(3, b),
        positions,
        wide[3 * b : 3 * b + n],
        narrow[4 * n : 5 * n],
        AttentionBatch(
            q_indptr,
            narrow[at : at + b],
            narrow[at + b : at + 2 * b],
            narrow[at - b - 1 : at],
            narrow[at + 2 * b :],
            np.ndarray(b, np.bool_, arena, wide.nbytes + narrow.nbytes),
            wide[3 * b + n :].view(np.uint64),
            page_size,
        ),
        TreeBatch(q_indptr, narrow[:n], positions, narrow[2 * n : 3 * n], narrow[3 * n : 4 * n]),
    )


def commit_walk(table: RequestTable, heads: np.ndarray, walk: WalkResult, *, step: int) -> Advance:
    """What a walk brings each request. MUTATES tokens and facts; tokens past the context are dropped."""
    rows, base, allowed = heads
    counts = walk.accept_length.astype(np.int64) + 1
    starts = counts.cumsum() - counts
    places = (base + 1 - starts).repeat(counts) + np.arange(len(walk.verified_id))
    is_there = places < table.tokens.shape[1]
    table.tokens[rows.repeat(counts)[is_there], places[is_there]] = walk.verified_id[is_there]
    table.facts[COMMITTED_LEN, rows] = base + counts
    table.facts[LAST_STEP, rows] = step
    is_full = bool((counts >= allowed).any())
    return Advance(starts.tolist(), is_full, walk.accepted_indices.tolist(), walk.verified_id.tolist())


def load_step_trees() -> StepTrees | None:
    """None where the extension was not built, or does not load."""
    return None if EXTENSION is None else StepTrees(EXTENSION)
