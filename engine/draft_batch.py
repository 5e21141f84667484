"""What a session asks of a drafter, and the ragged batches that its rows run in."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from torch import Tensor

from engine.pages import PageTable
from engine.pool import HeadCache
from engine.ragged import indptr
from kernels.ops import AttentionBatch
from paceline.tree import DraftTree
from paceline.types import MAX_SCRATCH_NODES, TreeShape, tree_shape


@dataclass(frozen=True, slots=True)
class ProposeParams:
    """The tree to propose, and the request's noise, which ranks the candidates. temperature 0 is greedy."""

    num_steps: int
    eagle_topk: int
    num_draft_tokens: int
    seed: int
    temperature: float
    min_path_permille: int = 0  # see TreeShape

    @classmethod
    def of(cls, shape: TreeShape, *, seed: int, temperature: float) -> ProposeParams:
        numbers = shape.num_steps, shape.eagle_topk, shape.num_draft_tokens
        return cls(*numbers, seed=seed, temperature=temperature, min_path_permille=shape.min_path_permille)

    @property
    def min_score(self) -> float:
        """Log-probability of a path below which drafts are left out."""
        return min_score(self.min_path_permille)


def min_score(min_path_permille: int) -> float:
    return math.log(min_path_permille / 1000) if min_path_permille else -math.inf


@dataclass(frozen=True, slots=True)
class ExtendItem:
    """What a target committed for one session since the last extend, at positions [base_len, base_len + rows).

    The table holds at least base_len + rows tokens. The last of ``tokens`` is the root of a proposed tree.
    """

    table: PageTable
    base_len: int
    tokens: np.ndarray  # [rows >= 1] int32: row i carries the token of position base_len + i + 1
    features: Tensor  # [rows, H]: row i carries the feature of position base_len + i
    propose: ProposeParams | None

    @property
    def committed_len(self) -> int:
        return self.base_len + len(self.tokens)

    def fitted_shape(self, draft_vocab_size: int) -> TreeShape:
        """The asked shape, less what the table or the draft vocabulary cannot hold."""
        assert self.propose is not None
        asked = self.propose
        topk = min(asked.eagle_topk, draft_vocab_size)
        num_steps = min(asked.num_steps, 1 + (self.table.capacity - self.committed_len) // topk)
        num_nodes = min(asked.num_draft_tokens, TreeShape.max_nodes(num_steps, topk))
        return tree_shape(num_steps, topk, num_nodes, asked.min_path_permille)


class PendingTrees(Protocol):
    """A drafter's work under way."""

    def trees(self) -> list[DraftTree | None]:
        """Waits for it: a tree for each item that asked for one, None for the others. To be called once."""
        ...


class TreeSource(Protocol):
    """What a Drafter and a DeviceDrafter have in common for a service."""

    def begin(self, items: Sequence[ExtendItem]) -> PendingTrees:
        """Begins to write the rows of all items, and to grow a tree for each that asks for one.

        At most two may be under way at a time.
        """
        ...


class Piece(NamedTuple):
    """Rows [start, stop) of an item, for one forward. place: the item's among those of the call."""

    place: int
    item: ExtendItem
    start: int
    stop: int

    @property
    def gives_tree(self) -> bool:
        """Whether a tree starts from its last row."""
        return self.item.propose is not None and self.stop == len(self.item.tokens)

    @property
    def tokens(self) -> np.ndarray:
        return self.item.tokens if self._is_whole else self.item.tokens[self.start : self.stop]

    @property
    def features(self) -> Tensor:
        return self.item.features if self._is_whole else self.item.features[self.start : self.stop]

    @property
    def _is_whole(self) -> bool:
        """A view of a tensor costs a microsecond or more."""
        return self.stop - self.start == len(self.item.tokens)


def split_rows(items: Sequence[ExtendItem], max_rows: int) -> Iterator[list[Piece]]:
    """The rows of all items, in order, at most max_rows a forward."""
    pieces: list[Piece] = []
    room = max_rows
    for place, item in enumerate(items):
        start, num_rows = 0, len(item.tokens)
        while start < num_rows:
            stop = min(num_rows, start + room)
            pieces.append(Piece(place, item, start, stop))
            room -= stop - start
            start = stop
            if room == 0:
                yield pieces
                pieces, room = [], max_rows
    if pieces:
        yield pieces


@dataclass(frozen=True, slots=True)
class RowBatch:
    """The integers of one extend forward."""

    tokens: np.ndarray  # [rows] int32
    positions: np.ndarray  # [rows] int64
    slots: np.ndarray  # [rows] int64
    last_rows: np.ndarray  # [pieces] int64: the last row of each
    attention: AttentionBatch


def row_batch(pieces: Sequence[Piece]) -> RowBatch:
    """One ragged causal forward."""
    counts = np.array([piece.stop - piece.start for piece in pieces])
    base = np.array([piece.item.base_len + piece.start for piece in pieces])
    attention = attention_batch(
        [piece.item.table for piece in pieces], prefix_len=base, local_len=counts, counts=counts
    )
    starts, stops = attention.q_indptr[:-1], attention.q_indptr[1:]
    row = np.arange(stops[-1])
    positions = row + (base - starts).repeat(counts)
    return RowBatch(
        tokens=np.concatenate([piece.tokens for piece in pieces]),
        positions=positions,
        slots=slots_of(attention, positions, attention.page_indptr[:-1].repeat(counts)),
        last_rows=stops.astype(np.int64) - 1,
        attention=attention,
    )


def attention_batch(
    tables: Sequence[PageTable],
    *,
    prefix_len: np.ndarray,
    local_len: np.ndarray,
    counts: np.ndarray,
    ancestors: np.ndarray | None = None,
    room: int | None = None,
) -> AttentionBatch:
    """Causal where there are no ancestors. counts: rows of each. room: pages are for so many local positions, where
    these are to become more."""
    page_size = tables[0].page_size
    num_pages = (prefix_len + (local_len if room is None else room) + (page_size - 1)) // page_size
    pages = [table.page_ids[:count] for table, count in zip(tables, num_pages.tolist(), strict=True)]
    q_indptr = indptr(counts)
    is_causal = np.zeros(len(tables), np.bool_)
    if ancestors is None:
        is_causal.fill(True)
        ancestors = np.zeros(q_indptr[-1], np.uint64)
    return AttentionBatch(
        q_indptr=q_indptr,
        prefix_len=prefix_len.astype(np.int32),
        local_len=local_len.astype(np.int32),
        page_indptr=indptr(num_pages),
        page_ids=pages[0] if len(pages) == 1 else np.concatenate(pages),
        is_causal=is_causal,
        ancestors=ancestors,
        page_size=page_size,
    )


def spare_batch(cache: HeadCache, num_rows: int) -> AttentionBatch:
    """One request on the cache's spare page, with up to 64 rows of a tree: for captures."""
    num_pages = -(-MAX_SCRATCH_NODES // cache.page_size)
    return AttentionBatch(
        q_indptr=np.array([0, num_rows], np.int32),
        prefix_len=np.zeros(1, np.int32),
        local_len=np.array([num_rows], np.int32),
        page_indptr=np.array([0, num_pages], np.int32),
        page_ids=np.full(num_pages, cache.num_pages, np.int32),
        is_causal=np.zeros(1, np.bool_),
        ancestors=np.ones(num_rows, np.uint64),
        page_size=cache.page_size,
    )


def slots_of(batch: AttentionBatch, positions: np.ndarray, first_pages: np.ndarray) -> np.ndarray:
    """int64: the slot of each position of a request of the batch. first_pages: where the request's pages begin in
    page_ids. The arrays broadcast."""
    place = positions + first_pages * batch.page_size
    page, offset = np.divmod(place, batch.page_size)
    return batch.page_ids[page] * np.int64(batch.page_size) + offset
