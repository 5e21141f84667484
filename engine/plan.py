"""StepPlan: the flat integer arrays of one ragged step, the same on every rank. No tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.pages import PageTable, pages_for
from engine.ragged import indptr
from engine.tree_links import links_of
from kernels.ops import AttentionBatch, TreeBatch
from paceline.tree import DraftTree

_FEW_ROWS = 64  # up to here a list is faster


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Prefill chunks and trees of one step. A row is one token that goes through the model.

    The KV of a row goes to its slot; its RoPE position is separate, for node i of a tree has the slot of
    position L + i and the position L + depth(i). The moves compact the last round's trees, before this
    step writes anything.
    """

    tokens: np.ndarray  # [rows] int32; -1 - i is what the root of tree i of the step before is going to draw
    positions: np.ndarray  # [rows] int32
    slots: np.ndarray  # [rows] int64
    attention: AttentionBatch
    logit_rows: np.ndarray  # [nodes] int32: rows whose logits are wanted, those of ``trees`` in its order
    trees: TreeBatch  # one entry for each request that samples
    move_src: np.ndarray  # [moves] int64 slots
    move_dst: np.ndarray  # [moves] int64 slots

    @property
    def num_rows(self) -> int:
        return len(self.tokens)

    @property
    def num_drawn(self) -> int:
        """Trees of the step before whose tokens are wanted: the first ones, up to the last that is."""
        tokens = self.tokens
        return max(0, -min(tokens.tolist()) if 0 < len(tokens) <= _FEW_ROWS else -int(tokens.min(initial=0)))

    def pack(self) -> np.ndarray:
        """int64, one dimension: page_size, batch_invariant, the length of each array, then the arrays."""
        arrays = [self._array(path) for path, _ in _LAYOUT]
        head = [self.attention.page_size, int(self.attention.batch_invariant), *map(len, arrays)]
        flat = [a.view(np.int64) if a.dtype == np.uint64 else a.astype(np.int64) for a in arrays]
        return np.concatenate([np.array(head, np.int64), *flat])

    @classmethod
    def unpack(cls, packed: np.ndarray) -> StepPlan:
        """The inverse of ``pack``."""
        sizes = packed[2 : 2 + len(_LAYOUT)]
        ends = 2 + len(_LAYOUT) + np.cumsum(sizes)
        values: dict[str, dict[str, np.ndarray]] = {"plan": {}, "attention": {}, "trees": {}}
        for (path, dtype), size, end in zip(_LAYOUT, sizes, ends, strict=True):
            part = packed[end - size : end]
            owner, name = path.split(".")
            values[owner][name] = part.view(np.uint64) if dtype is np.uint64 else part.astype(dtype)
        attention = AttentionBatch(**values["attention"], page_size=int(packed[0]), batch_invariant=bool(packed[1]))
        return cls(**values["plan"], attention=attention, trees=TreeBatch(**values["trees"]))

    def _array(self, path: str) -> np.ndarray:
        owner, name = path.split(".")
        array: np.ndarray = getattr(self if owner == "plan" else getattr(self, owner), name)
        return array


_LAYOUT: tuple[tuple[str, type[np.generic]], ...] = (
    ("plan.tokens", np.int32),
    ("plan.positions", np.int32),
    ("plan.slots", np.int64),
    ("plan.logit_rows", np.int32),
    ("plan.move_src", np.int64),
    ("plan.move_dst", np.int64),
    ("attention.q_indptr", np.int32),
    ("attention.prefix_len", np.int32),
    ("attention.local_len", np.int32),
    ("attention.page_indptr", np.int32),
    ("attention.page_ids", np.int32),
    ("attention.is_causal", np.bool_),
    ("attention.ancestors", np.uint64),
    ("trees.node_indptr", np.int32),
    ("trees.tokens", np.int32),
    ("trees.positions", np.int32),
    ("trees.first_child", np.int32),
    ("trees.next_sibling", np.int32),
)


@dataclass(frozen=True, slots=True, eq=False)
class TreeRows:
    """The trees of many requests, laid end to end."""

    tokens: np.ndarray  # [nodes] int32
    parents: np.ndarray  # [nodes] int32, local index, root -1
    num_nodes: np.ndarray  # [b] int64
    committed_len: np.ndarray  # [b] int64
    page_ids: np.ndarray  # [sum of pages] int32: of each request those up to its last node's slot


class StepBuilder:
    """Gathers the requests of one step, in the order of the calls, and builds its StepPlan once."""

    def __init__(self, page_size: int, *, batch_invariant: bool = False) -> None:
        self._page_size = page_size
        self._batch_invariant = batch_invariant
        self._tokens: list[np.ndarray] = []
        self._parents: list[np.ndarray] = []  # a chunk's rows count as roots
        self._page_ids: list[np.ndarray] = []
        self._num_rows: list[np.ndarray] = []  # of each request
        self._base: list[np.ndarray] = []
        self._is_causal: list[bool] = []
        self._samples: list[bool] = []
        self._moves: list[tuple[np.ndarray, np.ndarray]] = []

    def move(self, src_slots: np.ndarray, dst_slots: np.ndarray) -> None:
        """KV and feature rows to copy before the step; all sources are read before any write."""
        self._moves.append((src_slots, dst_slots))

    def add_chunk(self, table: PageTable, tokens: np.ndarray, start: int, *, sample: bool) -> None:
        """Prompt tokens int32 at positions [start, start + len); sample: draw the token after the last one."""
        self._add(_rows_of(table, np.asarray(tokens, np.int32), np.full(len(tokens), -1, np.int32), start))
        self._is_causal.append(True)
        self._samples.append(sample)

    def add_tree(self, table: PageTable, tree: DraftTree, committed_len: int) -> None:
        """Node i: position committed_len + depth(i), KV in the slot of position committed_len + i."""
        self.add_trees(_rows_of(table, tree.tokens, tree.parents, committed_len))

    def add_trees(self, trees: TreeRows) -> None:
        """As ``add_tree`` of each."""
        self._add(trees)
        self._is_causal += [False] * len(trees.num_nodes)
        self._samples += [True] * len(trees.num_nodes)

    def build(self) -> StepPlan:
        tokens = _concat(self._tokens, np.int32)
        num_rows = _concat(self._num_rows, np.int64)
        base = _concat(self._base, np.int64)
        page_ids = _concat(self._page_ids, np.int32)
        is_causal = np.array(self._is_causal, np.bool_)
        page_size = self._page_size
        q_indptr, page_indptr = indptr(num_rows), indptr((base + num_rows + (page_size - 1)) // page_size)
        row, first_row, starts_at = np.arange(len(tokens)), q_indptr[:-1].repeat(num_rows), base.repeat(num_rows)
        local = row - first_row
        # A request's pages are a run of page_ids: as if its positions began where the run does.
        page, offset = np.divmod(starts_at + local + page_indptr[:-1].repeat(num_rows) * page_size, page_size)
        links = links_of(_concat(self._parents, np.int32), local, first_row)
        positions = (starts_at + links.depths).astype(np.int32)
        ancestors, logit_rows, node_indptr = links.ancestors, row.astype(np.int32), q_indptr
        nodes = (tokens, positions, links.first_child, links.next_sibling)
        if True in self._is_causal:
            causal_rows = is_causal.repeat(num_rows)
            positions = np.where(causal_rows, starts_at + local, positions).astype(np.int32)
            ancestors = np.where(causal_rows, np.uint64(0), ancestors)
            samples = np.array(self._samples, np.bool_)
            last_rows = local == num_rows.repeat(num_rows) - 1
            is_node = samples.repeat(num_rows) & (~causal_rows | last_rows)
            logit_rows = np.flatnonzero(is_node).astype(np.int32)
            node_indptr = indptr(np.where(is_causal, 1, num_rows)[samples])
            nodes = (
                tokens[logit_rows],
                positions[logit_rows],
                links.first_child[logit_rows],
                links.next_sibling[logit_rows],
            )
        return StepPlan(
            tokens=tokens,
            positions=positions,
            slots=page_ids[page] * np.int64(page_size) + offset,
            attention=AttentionBatch(
                q_indptr=q_indptr,
                prefix_len=base.astype(np.int32),
                local_len=num_rows.astype(np.int32),
                page_indptr=page_indptr,
                page_ids=page_ids,
                is_causal=is_causal,
                ancestors=ancestors,
                page_size=page_size,
                batch_invariant=self._batch_invariant,
            ),
            logit_rows=logit_rows,
            trees=TreeBatch(node_indptr, *nodes),
            move_src=_concat([src for src, _ in self._moves], np.int64),
            move_dst=_concat([dst for _, dst in self._moves], np.int64),
        )

    def _add(self, rows: TreeRows) -> None:
        self._tokens.append(rows.tokens)
        self._parents.append(rows.parents)
        self._num_rows.append(rows.num_nodes)
        self._base.append(rows.committed_len)
        self._page_ids.append(rows.page_ids)


def _rows_of(table: PageTable, tokens: np.ndarray, parents: np.ndarray, base: int) -> TreeRows:
    pages = table.page_ids[: pages_for(base + len(tokens), table.page_size)]
    return TreeRows(tokens, parents, np.array([len(tokens)]), np.array([base]), pages)


def compaction(table: PageTable, committed_len: int, path: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Source and destination slots int64 that bring an accepted path to its positions.

    path: local indices of the accepted nodes, root first. Node path[d] lies at position committed_len +
    path[d] and belongs at committed_len + d; pairs that already agree are left out.
    """
    path = np.asarray(path, np.int64)
    moved = np.flatnonzero(path != np.arange(len(path)))
    slots = table.slots(committed_len, committed_len + int(path.max(initial=0)) + 1)
    return slots[path[moved]], slots[moved]


def _concat(parts: list[np.ndarray], dtype: type[np.generic]) -> np.ndarray:
    if len(parts) == 1:
        return parts[0].astype(dtype, copy=False)
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype)
