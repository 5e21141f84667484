"""SequenceTable: what a step reads and writes of all running requests at once, a column each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from engine.pages import pages_for, slots_at
from engine.sampling import sampling_batch
from kernels.ops import SamplingBatch, WalkResult
from kernels.step_trees import (
    COMMITTED_LEN,
    LAST_STEP,
    LIMIT,
    NUM_FACTS,
    PENDING_LEN,
    PENDING_TREE,
    Advance,
    RequestTable,
    commit_walk,
    load_step_trees,
)
from paceline.tree import MAX_NODES
from paceline.types import SamplingParams
from target_service.request import Request
from target_service.speculation_stats import RoundCounts

_NO_TREE = -1
_SAMPLING = ("seed", "temperature", "top_k", "top_p", "min_p")


@dataclass(frozen=True, slots=True)
class Moves:
    """KV and feature rows that accepted paths left out of place; they move before their request's next step writes."""

    rows: np.ndarray  # int64 [n], of the table
    src: np.ndarray  # int64 [n] slots
    dst: np.ndarray  # int64 [n] slots

    def __getitem__(self, kept: np.ndarray) -> Moves:
        return Moves(self.rows[kept], self.src[kept], self.dst[kept])

    def __add__(self, other: Moves) -> Moves:
        if not len(self.rows):
            return other
        parts = zip((self.rows, self.src, self.dst), (other.rows, other.src, other.dst), strict=True)
        return Moves(*(np.concatenate(part) for part in parts))


_NO_MOVES = Moves(*(np.zeros(0, np.int64) for _ in range(3)))


class SequenceTable:
    """A row for each request that runs, from ``add`` to ``remove``. Engine thread only.

    Columns are arrays over the rows, changed in place; those of a free row mean nothing. A step takes what it needs
    with one index, so that its cost hardly grows with the batch.
    """

    def __init__(self, num_rows: int, *, context_length: int, page_size: int) -> None:
        """num_rows: requests that may run at once. Memory of tokens that no request ever had is never touched."""
        self.page_size = page_size
        self.step_trees = load_step_trees()
        self.tokens = np.zeros((num_rows, context_length), np.int32)
        self.page_ids = np.zeros((num_rows, pages_for(context_length + MAX_NODES, page_size)), np.int32)
        facts = np.zeros((NUM_FACTS, num_rows), np.int64)
        self.columns = RequestTable(self.tokens, self.page_ids, facts)
        self.committed_len, self.limit, self.last_step = facts[COMMITTED_LEN], facts[LIMIT], facts[LAST_STEP]
        self.pending_len, self.pending_tree = facts[PENDING_LEN], facts[PENDING_TREE]  # see ``Flights``
        self.pending_tree[:] = _NO_TREE
        self.prompt_len = np.zeros(num_rows, np.int64)
        self.stream = np.zeros(num_rows, np.int64)
        self.request = np.zeros(num_rows, np.uint64)  # its number on the stream
        self.counts = RoundCounts(num_rows)
        self._moves = _NO_MOVES
        self._find_moves: Callable[[], Moves] | None = None
        self._sampling = sampling_batch([SamplingParams()] * num_rows)
        self._sampled: tuple[list[int], SamplingBatch] | None = None  # of the last step's rows
        self._free = list(range(num_rows - 1, -1, -1))

    def add(self, request: Request, page_ids: np.ndarray, *, limit: int) -> int:
        """The row that the request has from now on. page_ids: int32, all that it is going to need."""
        row = self._free.pop()
        prompt_len = len(request.prompt_ids)
        self.tokens[row, :prompt_len] = request.prompt_ids
        self.tokens[row, prompt_len : prompt_len + len(request.emitted_ids)] = request.emitted_ids
        self.page_ids[row, : len(page_ids)] = page_ids
        self.committed_len[row] = 0
        self.prompt_len[row] = prompt_len
        self.limit[row] = limit
        self.stream[row], self.request[row] = request.key
        self.last_step[row] = 0
        self.clear_pending(row)
        self.counts.reset(row)
        sampling = sampling_batch([request.params])
        for name in _SAMPLING:
            getattr(self._sampling, name)[row] = getattr(sampling, name)[0]
        self._sampled = None
        return row

    def remove(self, row: int) -> None:
        """The row is free again, and its moves are forgotten."""
        self._free.append(row)
        stays = self.moves.rows != row
        if not stays.all():
            self._moves = self._moves[stays]

    def advance(self, heads: np.ndarray, walk: WalkResult, *, step: int) -> Advance:
        """What a walk brings each request. MUTATES their tokens, those past a limit included, lengths and steps."""
        commit = commit_walk if self.step_trees is None else self.step_trees.commit
        return commit(self.columns, heads, walk, step=step)

    @property
    def moves(self) -> Moves:
        """Those that are yet to be made."""
        if self._find_moves is not None:
            self.settle_moves()
        return self._moves

    def move_later(self, find: Callable[[], Moves]) -> None:
        """Moves that are found out when somebody asks for them."""
        if self._find_moves is not None:
            self.settle_moves()
        self._find_moves = find

    def settle_moves(self) -> None:
        """Finds them out now."""
        find, self._find_moves = self._find_moves, None
        if find is not None:
            self._moves += find()

    def lay_out(self, rows: np.ndarray, num_nodes: np.ndarray) -> None:
        """The next step is expected to be of these requests, with so many nodes each: int64 [b], int32 [b]."""
        if self.step_trees is not None:
            self.step_trees.lay_out(self.committed_len[rows], num_nodes, page_size=self.page_size)

    def clear_pending(self, rows: np.ndarray | int) -> None:
        """Nothing of these is under way."""
        self.pending_len[rows] = 0
        self.pending_tree[rows] = _NO_TREE

    def newest_tokens(self, rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """int32 [n]: the token at each length; -1 - i where tree i of the step under way is going to draw it."""
        trees = self.pending_tree[rows]
        return np.where(trees == _NO_TREE, self.tokens[rows, lengths], -1 - trees).astype(np.int32)

    def sampling(self, rows: list[int]) -> SamplingBatch:
        """How these requests sample; not to be changed, for the next step of the same requests gets the same."""
        if self._sampled is None or self._sampled[0] != rows:
            self._sampled = rows, SamplingBatch(*(getattr(self._sampling, name)[rows] for name in _SAMPLING))
        return self._sampled[1]

    def pages_of(self, rows: np.ndarray, num_tokens: np.ndarray) -> np.ndarray:
        """int32: the pages of the first tokens of each of the rows."""
        num_pages = (num_tokens + (self.page_size - 1)) // self.page_size
        width = int(num_pages.max(initial=0))
        return self.page_ids[rows, :width][np.arange(width) < num_pages[:, None]]

    def slots_at(self, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """int64 [n]: the slot of each position."""
        return slots_at(self.page_ids, rows, positions, self.page_size)

    def take_moves(self, rows: list[int]) -> Moves:
        """Those of the rows, which the next step has. The others wait for theirs: it may be long, and a read on its way
        knows the places that they have now."""
        moves = self.moves
        if not len(moves.rows):
            return moves
        if set(moves.rows.tolist()).issubset(rows):
            self._moves = _NO_MOVES
            return moves
        taken = np.zeros(len(self.committed_len), np.bool_)
        taken[rows] = True
        taken = taken[moves.rows]
        self._moves = moves[~taken]
        return moves[taken]
