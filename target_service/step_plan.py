"""From a schedule to the StepPlan that all ranks run, and what its trees sample with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.plan import StepBuilder, StepPlan, TreeRows
from kernels.ops import SamplingBatch
from kernels.step_trees import StepTrees, TreeTable
from target_service.scheduler import Schedule
from target_service.sequence import Sequence
from target_service.sequence_table import Moves, SequenceTable


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """The plan's trees are those of the schedule, one node for each request without one, and one for the last row of
    each prompt that ends in this step, whose first token is sampled."""

    plan: StepPlan
    sampling: SamplingBatch  # of the plan's trees
    due: Schedule
    seqs: list[Sequence]  # one a tree of the plan
    rows: np.ndarray  # int64: their rows of the table
    num_speculating: int  # the plan's first trees: drafts are going to want some of their rows
    num_decoding: int  # those and the other decoding requests; the rest are the last rows of prompts
    late: list[int]  # those whose tree did not come in time

    @property
    def num_drafted_rows(self) -> int:
        """The plan's first rows, those of num_speculating."""
        return int(self.plan.trees.node_indptr[self.num_speculating])

    @property
    def num_tree_nodes(self) -> int:
        """Of the drafts' trees."""
        return int(self.plan.trees.node_indptr[len(self.due.trees)])

    @property
    def is_plain(self) -> bool:
        """Each request goes on by one token or a part of its prompt, whatever is drawn, and nothing moves."""
        return not (self.num_speculating or len(self.plan.move_src))

    @property
    def num_chunk_tokens(self) -> int:
        return sum(chunk.stop - chunk.start for chunk in self.due.chunks)


def plan_step(due: Schedule, table: SequenceTable) -> PlannedStep:
    """MUTATES the table: the moves that the requests' last steps left are in the plan now."""
    ending = [chunk.seq for chunk in due.chunks if chunk.is_last]
    seqs = [*(turn.seq for turn in due.trees), *due.missing, *due.plain, *ending]
    rows = np.array([seq.row for seq in seqs], np.int64)
    num_decoding = len(seqs) - len(ending)
    moves = table.take_moves(rows[:num_decoding])
    trees = _tree_table(due, table, rows[:num_decoding])
    if table.step_trees is None or due.chunks:
        plan = _built(due, trees, moves, table)
    else:
        plan = _planned(trees, moves, table.step_trees)
    missing = enumerate(due.missing, start=len(due.trees))
    late = [number for number, seq in missing if seq.draft is not None and seq.draft.is_asking]
    return PlannedStep(
        plan=plan,
        sampling=table.sampling(rows),
        due=due,
        seqs=seqs,
        rows=rows,
        num_speculating=len(due.trees) + len(due.missing),
        num_decoding=num_decoding,
        late=late,
    )


def _planned(trees: TreeTable, moves: Moves, step_trees: StepTrees) -> StepPlan:
    """Of trees alone."""
    step = step_trees.plan(trees)
    return StepPlan(
        tokens=trees.tokens,
        positions=step.positions,
        slots=step.slots,
        attention=step.attention,
        logit_rows=step.rows,
        trees=step.trees,
        move_src=moves.src,
        move_dst=moves.dst,
    )


def _built(due: Schedule, trees: TreeTable, moves: Moves, table: SequenceTable) -> StepPlan:
    builder = StepBuilder(table.page_size)
    if len(moves.src):
        builder.move(moves.src, moves.dst)
    if len(trees.num_nodes):
        page_ids = table.pages_of(trees.table_rows, trees.committed_len + trees.num_nodes)
        builder.add_trees(TreeRows(trees.tokens, trees.parents, trees.num_nodes, trees.committed_len, page_ids))
    for chunk in due.chunks:
        tokens = chunk.seq.tokens[chunk.start : chunk.stop]
        builder.add_chunk(chunk.seq.pages, tokens, chunk.start, sample=chunk.is_last)
    return builder.build()


def _tree_table(due: Schedule, table: SequenceTable, rows: np.ndarray) -> TreeTable:
    """rows: of the decoding requests in the schedule's order."""
    trees = [turn.tree for turn in due.trees]
    num_trees, num_others = len(trees), len(rows) - len(trees)
    committed_len = table.committed_len[rows]
    if due.is_ahead:
        committed_len += table.pending_len[rows]
    tokens = [tree.tokens for tree in trees]
    parents = [tree.parents for tree in trees]
    counts = [len(part) for part in parents]
    if num_others:
        others = (rows[num_trees:], committed_len[num_trees:])
        tokens.append(table.newest_tokens(*others) if due.is_ahead else table.tokens[others])
        parents.append(np.full(num_others, -1, np.int32))
        counts += [1] * num_others
    return TreeTable(
        tokens=_joined(tokens),
        parents=_joined(parents),
        num_nodes=np.array(counts, np.int64),
        committed_len=committed_len,
        page_table=table.page_ids,
        table_rows=rows,
        page_size=table.page_size,
    )


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """int32."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)
