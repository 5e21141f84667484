"""Committer: what a step decided becomes tokens, lengths, moves and ends of the requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from kernels.ops import WalkResult
from kernels.step_trees import HEAD_ALLOWED
from paceline.types import FinishReason, TreeShape
from target_service.flights import Flight
from target_service.request_desk import RequestDesk
from target_service.sequence_table import Moves, SequenceTable
from target_service.speculation_stats import AcceptanceWindow
from target_service.step_news import AskedTrees, StepNews
from target_service.step_paths import StepPaths
from target_service.step_plan import PlannedStep
from target_service.token_columns import TokenColumns

_NO_ENDS: dict[int, FinishReason] = {}


@dataclass(frozen=True, slots=True)
class Committed:
    """What a step came to."""

    news: StepNews
    ended: list[int]  # trees of the plan whose requests ended


@dataclass(slots=True)
class Decided:
    """A step whose tokens and lengths are known: enough to ask the drafts, and to run the next one."""

    planned: PlannedStep
    walk: WalkResult
    kept: np.ndarray | None  # int64 [b], tokens of each tree; None: all
    ended: list[int]
    shapes: Sequence[TreeShape | None]
    paths: StepPaths
    committed: Committed | None = None  # once it was accounted for


class Committer:
    """Engine thread only."""

    def __init__(self, requests: RequestDesk, *, window: AcceptanceWindow) -> None:
        self._requests = requests
        self._table: SequenceTable = requests.table
        self._window = window

    def commit(self, flight: Flight, walk: WalkResult) -> Decided:
        """A request that ends is gone when this returns. What nobody waits for is left to ``account``, which is to be
        called before anything else happens to the requests. A plan's first rows are its trees, so that a node of theirs
        and its row have the same number.
        """
        planned, roots = flight.planned, flight.roots
        starts, is_full, path, tokens = self._table.advance(planned.heads, walk, step=flight.number)
        if len(tokens) > len(starts):
            self._table.move_later(partial(_moves, planned, walk, self._table))
        paths = StepPaths(flight.number, roots.positions, roots.stop_rows, starts, path, tokens)
        kept, ends = None, _NO_ENDS
        if is_full or not roots.stop_ids.isdisjoint(tokens):
            kept, ends = _ends(planned, walk)
        for chunk in planned.due.chunks:
            if chunk.is_last:
                self._requests.begin_decoding(chunk.seq)
            else:
                chunk.seq.committed_len = chunk.stop
        decided = Decided(planned, walk, kept if ends else None, list(ends), flight.shapes, paths)
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
        offset = planned.base + 1 - table.prompt_len[rows]
        counts, ids, kept = decided.walk.accept_length.astype(np.int64) + 1, decided.walk.verified_id, decided.kept
        if kept is not None:
            ids = ids[np.arange(len(ids)) - (counts.cumsum() - counts).repeat(counts) < kept.repeat(counts)]
        deltas = TokenColumns(table.request[rows], offset, counts if kept is None else kept, ids)
        decided.committed = Committed(StepNews(table.stream[rows], deltas, asked), decided.ended)
        table.settle_moves()
        return decided.committed

    def _note_trees(self, decided: Decided) -> AskedTrees | None:
        """How far each tree was right; for the routers' policies with the late ones. None where no draft was asked."""
        planned, accept_length, shapes = decided.planned, decided.walk.accept_length, decided.shapes
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


def _ends(planned: PlannedStep, walk: WalkResult) -> tuple[np.ndarray, dict[int, FinishReason]]:
    """How many of each tree's tokens are kept, and which requests end: at the first stop token or at the limit.

    A stop token at the last allowed place is a stop.
    """
    counts, allowed = walk.accept_length.astype(np.int64) + 1, planned.heads[HEAD_ALLOWED]
    kept = np.minimum(counts, allowed)
    ends = dict.fromkeys(np.flatnonzero(counts >= allowed).tolist(), FinishReason.LENGTH)
    stop = 0
    for number, (count, left) in enumerate(zip(counts.tolist(), kept.tolist(), strict=True)):
        start, stop = stop, stop + count
        stop_ids = planned.seqs[number].stop_ids
        for depth, token in enumerate(walk.verified_id[start : start + left].tolist()):
            if token in stop_ids:
                ends[number] = FinishReason.STOP
                kept[number] = depth + 1
                break
    return kept, ends


def _moves(planned: PlannedStep, walk: WalkResult, table: SequenceTable) -> Moves:
    """Of the path's nodes that do not lie at their depth, where they belong."""
    trees, counts = planned.plan.trees, walk.accept_length + 1
    first_nodes = trees.node_indptr[:-1]
    entry = np.arange(len(counts)).repeat(counts)
    depth = np.arange(len(entry)) - (counts.cumsum() - counts)[entry]
    path = walk.accepted_indices - first_nodes[entry]
    moved = (path != depth).nonzero()[0]
    entry = entry[moved]
    rows, roots = planned.rows[entry], trees.positions[first_nodes[entry]].astype(np.int64)
    src = table.slots_at(rows, roots + path[moved])
    return Moves(rows, src, table.slots_at(rows, roots + depth[moved]))
