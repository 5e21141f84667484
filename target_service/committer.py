"""Committer: what a step decided becomes tokens, lengths, moves and ends of the requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from kernels.ops import WalkResult
from paceline.types import FinishReason, TreeShape
from target_service.request_desk import RequestDesk
from target_service.sequence import StepPath
from target_service.sequence_table import Moves, SequenceTable
from target_service.speculation_stats import AcceptanceWindow
from target_service.step_news import AskedTrees, StepNews
from target_service.step_plan import PlannedStep
from target_service.token_columns import TokenColumns


@dataclass(frozen=True, slots=True)
class Committed:
    """What a step came to."""

    news: StepNews
    ended: list[int]  # trees of the plan whose requests ended


@dataclass(slots=True)
class Decided:
    """A step whose tokens and lengths are known: enough to ask the drafts, and to run the next one."""

    planned: PlannedStep
    accept_length: np.ndarray  # int32 [b]
    base: np.ndarray  # int64 [b], position of each tree's root
    kept: np.ndarray  # int64 [b], tokens of each tree
    ids: np.ndarray  # int32 [sum of kept]
    ended: list[int]
    shapes: Sequence[TreeShape | None]
    committed: Committed | None = None  # once it was accounted for


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The tokens of a walk, flat, and where they belong."""

    ids: np.ndarray  # int32 [n]
    entry: np.ndarray  # int64 [n], tree of the plan
    rows: np.ndarray  # int64 [n], of the table
    depth: np.ndarray  # int64 [n], of the node that each was drawn at
    roots: np.ndarray  # int64 [n], position of the tree's root

    def __getitem__(self, kept: np.ndarray) -> _Tokens:
        return _Tokens(self.ids[kept], self.entry[kept], self.rows[kept], self.depth[kept], self.roots[kept])


class Committer:
    """Engine thread only."""

    def __init__(self, requests: RequestDesk, *, window: AcceptanceWindow) -> None:
        self._requests = requests
        self._table: SequenceTable = requests.table
        self._window = window

    def commit(
        self, planned: PlannedStep, walk: WalkResult, *, step: int, shapes: Sequence[TreeShape | None]
    ) -> Decided:
        """Every tree's root lies at the position before its first new token, that of a prompt's last row included.

        A request that ends is gone when this returns. What nobody waits for is left to ``account``, which is to be
        called before anything else happens to the requests. A plan's first rows are its trees, so that a node of theirs
        and its row have the same number. shapes: of the trees that the plan's first num_speculating requests were
        asking for at its launch; None for one that had not asked.
        """
        table, rows = self._table, planned.rows
        trees = planned.plan.trees
        first_nodes = trees.node_indptr[:-1]
        base = trees.positions[first_nodes].astype(np.int64)
        counts = walk.accept_length.astype(np.int64) + 1
        starts = counts.cumsum() - counts
        entry = np.arange(len(rows)).repeat(counts)
        depth = np.arange(len(entry)) - starts[entry]
        tokens = _Tokens(walk.verified_id, entry, rows[entry], depth, base[entry])
        if len(entry) > len(rows):
            table.move_later(partial(_moves, table, walk.accepted_indices - first_nodes[entry], tokens))
        kept, ends = self._ends(table.limit[rows] - 1 - base, counts, tokens)
        if ends:
            tokens = tokens[depth < kept[entry]]
        table.tokens[tokens.rows, tokens.roots + tokens.depth + 1] = tokens.ids
        table.committed_len[rows] = base + counts
        table.last_step[rows] = step
        if planned.num_speculating:
            _note_paths(planned, walk, starts=starts, step=step)
        for chunk in planned.due.chunks:
            if chunk.is_last:
                self._requests.begin_decoding(chunk.seq)
            else:
                chunk.seq.committed_len = chunk.stop
        decided = Decided(planned, walk.accept_length, base, kept, tokens.ids, list(ends), shapes)
        if ends:
            self.account(decided)
            for number, reason in ends.items():
                self._requests.finish(planned.seqs[number].key, reason)
        return decided

    def account(self, decided: Decided) -> Committed:
        """Counts the step, and puts together what the routers are to learn of it, which is yet to be told."""
        if decided.committed is not None:
            return decided.committed
        table, planned = self._table, decided.planned
        rows = planned.rows
        table.counts.add_rounds(rows[: planned.num_decoding], late=rows[planned.late])
        asked = self._note_trees(decided) if planned.num_speculating else None
        offset = decided.base + 1 - table.prompt_len[rows]
        deltas = TokenColumns(table.request[rows], offset, decided.kept, decided.ids)
        decided.committed = Committed(StepNews(table.stream[rows], deltas, asked), decided.ended)
        table.settle_moves()
        return decided.committed

    def _ends(
        self, allowed: np.ndarray, counts: np.ndarray, tokens: _Tokens
    ) -> tuple[np.ndarray, dict[int, FinishReason]]:
        """How many of each tree's tokens are kept, and which requests end: at the first stop token or at the limit.

        A stop token at the last allowed place is a stop. allowed: int64 [b], tokens up to the limit.
        """
        is_stop, is_full = self._table.stops_at(tokens.rows, tokens.ids), counts >= allowed
        if not is_stop.any() and not is_full.any():
            return counts, {}
        stops, full = np.flatnonzero(is_stop), np.flatnonzero(is_full)
        kept = np.minimum(counts, allowed)
        ends = dict.fromkeys(full.tolist(), FinishReason.LENGTH)
        for number, depth in zip(tokens.entry[stops].tolist(), tokens.depth[stops].tolist(), strict=True):
            if depth < kept[number] and ends.get(number) is not FinishReason.STOP:
                ends[number] = FinishReason.STOP
                kept[number] = depth + 1
        return kept, ends

    def _note_trees(self, decided: Decided) -> AskedTrees | None:
        """How far each tree was right; for the routers' policies with the late ones. None where no draft was asked."""
        planned, accept_length, shapes = decided.planned, decided.accept_length, decided.shapes
        num_trees = len(planned.due.trees)
        node_indptr = planned.plan.trees.node_indptr
        num_nodes = node_indptr[1 : num_trees + 1] - node_indptr[:num_trees]
        trees = (num_nodes > 1).nonzero()[0]
        if len(trees) < num_trees:
            num_nodes = num_nodes[trees]
        accepted = accept_length[trees]
        self._table.counts.add_trees(planned.rows[trees], num_nodes=num_nodes, accept_length=accepted)
        self._window.extend(accepted.tolist())
        asked = [*trees.tolist(), *planned.late]
        shapes_asked = [shape for number in asked if (shape := shapes[number]) is not None]
        assert len(shapes_asked) == len(asked), "a tree that nobody asked for"
        return AskedTrees(asked, shapes_asked, num_nodes, accepted) if asked else None


def _note_paths(planned: PlannedStep, walk: WalkResult, *, starts: np.ndarray, step: int) -> None:
    """Which rows of the step each request that speculates has committed."""
    num_speculating = planned.num_speculating
    first_nodes = planned.plan.trees.node_indptr[: num_speculating + 1].tolist()
    roots = planned.plan.trees.positions
    begins, lengths = starts[:num_speculating].tolist(), walk.accept_length[:num_speculating].tolist()
    indices = walk.accepted_indices.tolist()
    for number, (seq, start, length) in enumerate(zip(planned.seqs, begins, lengths, strict=False)):
        base = roots.item(first_nodes[number])
        seq.path = StepPath(step, base, indices[start : start + length + 1], first_nodes[number + 1])


def _moves(table: SequenceTable, path: np.ndarray, tokens: _Tokens) -> Moves:
    """path: int [n], local index of the node that each token was drawn at; it belongs at its depth."""
    moved = (path != tokens.depth).nonzero()[0]
    rows, roots = tokens.rows[moved], tokens.roots[moved]
    src = table.slots_at(rows, roots + path[moved])
    return Moves(rows, src, table.slots_at(rows, roots + tokens.depth[moved]))
