"""From a schedule to the StepPlan that all ranks run, and what its trees sample with."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from engine.plan import StepBuilder, StepPlan, TreeRows
from kernels.ops import SamplingBatch
from kernels.step_trees import HEAD_BASE, HEAD_ROW
from target_service.scheduler import Schedule
from target_service.sequence import Sequence
from target_service.sequence_table import Moves, SequenceTable
from target_service.tree_nodes import columns_of


class PlannedStep(NamedTuple):
    """The plan's trees are those of the schedule, one node for each request without one, and one for the last row of
    each prompt that ends in this step, whose first token is sampled."""

    plan: StepPlan
    sampling: SamplingBatch  # of the plan's trees
    due: Schedule
    seqs: list[Sequence]  # one a tree of the plan
    heads: np.ndarray  # int64 [3, b], see kernels.step_trees; a root lies before its request's first new token
    num_speculating: int  # the plan's first trees: drafts are going to want some of their rows
    num_decoding: int  # those and the other decoding requests; the rest are the last rows of prompts
    late: list[int]  # those whose tree did not come in time

    @property
    def rows(self) -> np.ndarray:
        """int64 [b]: the requests' rows of the table."""
        rows: np.ndarray = self.heads[HEAD_ROW]
        return rows

    @property
    def base(self) -> np.ndarray:
        """int64 [b]: the roots' positions."""
        base: np.ndarray = self.heads[HEAD_BASE]
        return base

    @property
    def num_drafted_rows(self) -> int:
        """The plan's first rows, those of num_speculating."""
        return self.plan.trees.node_indptr.item(self.num_speculating)

    @property
    def num_tree_nodes(self) -> int:
        """Of the drafts' trees."""
        return self.plan.trees.node_indptr.item(len(self.due.trees))

    @property
    def is_plain(self) -> bool:
        """Each request goes on by one token or a part of its prompt, whatever is drawn, and nothing moves."""
        return not (self.num_speculating or len(self.plan.move_src))

    @property
    def num_chunk_tokens(self) -> int:
        return sum(chunk.stop - chunk.start for chunk in self.due.chunks)


def plan_step(due: Schedule, table: SequenceTable) -> PlannedStep:
    """MUTATES the table: the moves that the requests' last steps left are in the plan now."""
    drafted, trees, missing, plain, chunks, _, _ = due
    seqs = drafted + missing + plain
    num_decoding = len(seqs)
    rows = [seq.row for seq in seqs]
    moves = table.take_moves(rows)
    if table.step_trees is None or chunks:
        plan = _built(due, rows, moves, table)
        seqs += [chunk.seq for chunk in chunks if chunk.is_last]
        rows = [seq.row for seq in seqs]
        heads = _heads(plan, rows, table)
    else:
        step = table.step_trees.plan(table.columns, rows, trees, page_size=table.page_size)
        heads, positions, slots, numbers, attention, nodes = step
        plan = StepPlan(nodes.tokens, positions, slots, attention, numbers, nodes, moves.src, moves.dst)
    late: list[int] = []
    if missing:
        numbered = enumerate(missing, start=len(drafted))
        late = [number for number, seq in numbered if seq.draft is not None and seq.draft.is_asking]
    sampling = table.sampling(rows)
    return PlannedStep(plan, sampling, due, seqs, heads, len(drafted) + len(missing), num_decoding, late)


def _built(due: Schedule, rows: list[int], moves: Moves, table: SequenceTable) -> StepPlan:
    """By arrays. rows: of the decoding requests."""
    builder = StepBuilder(table.page_size)
    if len(moves.src):
        builder.move(moves.src, moves.dst)
    if rows:
        builder.add_trees(_tree_rows(due.trees, np.array(rows), table))
    for chunk in due.chunks:
        tokens = chunk.seq.tokens[chunk.start : chunk.stop]
        builder.add_chunk(chunk.seq.pages, tokens, chunk.start, sample=chunk.is_last)
    return builder.build()


def _tree_rows(trees: list[bytes], rows: np.ndarray, table: SequenceTable) -> TreeRows:
    """Those of the first requests, and one node of each of the others."""
    others = rows[len(trees) :]
    base = table.committed_len[rows] + table.pending_len[rows]
    newest = np.stack([table.newest_tokens(others, base[len(trees) :]), np.full(len(others), -1, np.int32)])
    columns = [columns_of(nodes) for nodes in trees]
    num_nodes = np.array([part.shape[1] for part in columns] + [1] * len(others))
    tokens, parents = np.concatenate([*columns, newest], axis=1)
    return TreeRows(tokens, parents, num_nodes, base, table.pages_of(rows, base + num_nodes))


def _heads(plan: StepPlan, rows: list[int], table: SequenceTable) -> np.ndarray:
    """int64 [3, b]."""
    base = plan.trees.positions[plan.trees.node_indptr[:-1]].astype(np.int64)
    return np.stack([np.array(rows, np.int64), base, table.limit[rows] - 1 - base])
