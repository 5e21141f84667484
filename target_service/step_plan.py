"""From a schedule to the StepPlan that all ranks run, and what its trees sample with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.plan import StepBuilder, StepPlan, TreeRows
from kernels.ops import SamplingBatch
from target_service.scheduler import Schedule
from target_service.sequence import Sequence
from target_service.sequence_table import SequenceTable


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """The plan's trees are those of the schedule, one node for each request without one, and one for the last row of
    each prompt that ends in this step, whose first token is sampled."""

    plan: StepPlan
    sampling: SamplingBatch  # of the plan's trees
    due: Schedule
    seqs: list[Sequence]  # one a tree of the plan
    rows: np.ndarray  # int64: their rows of the table
    late: list[Sequence]  # decoding requests whose tree did not come in time

    @property
    def num_speculating(self) -> int:
        """The plan's first trees, of requests whose drafts are going to want some of their rows."""
        return len(self.due.trees) + len(self.due.missing)

    @property
    def num_decoding(self) -> int:
        """The plan's first trees; the rest are the last rows of prompts."""
        return self.num_speculating + len(self.due.plain)

    @property
    def num_drafted_rows(self) -> int:
        """The plan's first rows, those of num_speculating."""
        return int(self.plan.trees.node_indptr[self.num_speculating])

    @property
    def num_chunk_tokens(self) -> int:
        return sum(chunk.stop - chunk.start for chunk in self.due.chunks)


def plan_step(due: Schedule, table: SequenceTable) -> PlannedStep:
    """MUTATES the table: the moves that the last step left are in the plan now."""
    builder = StepBuilder(table.page_size)
    moves = table.take_moves()
    if len(moves.src):
        builder.move(moves.src, moves.dst)
    decoding = [turn.seq for turn in due.trees] + due.missing + due.plain
    if decoding:
        builder.add_trees(_tree_rows(due, decoding, table))
    ending: list[Sequence] = []
    for chunk in due.chunks:
        tokens = chunk.seq.tokens[chunk.start : chunk.stop]
        builder.add_chunk(chunk.seq.pages, tokens, chunk.start, sample=chunk.is_last)
        if chunk.is_last:
            ending.append(chunk.seq)
    seqs = decoding + ending
    rows = np.array([seq.row for seq in seqs], np.int64)
    late = [seq for seq in due.missing if seq.draft is not None and seq.draft.is_asking]
    return PlannedStep(builder.build(), table.sampling(rows), due, seqs, rows, late)


def _tree_rows(due: Schedule, decoding: list[Sequence], table: SequenceTable) -> TreeRows:
    rows = np.array([seq.row for seq in decoding], np.int64)
    committed_len = table.committed_len[rows]
    num_trees = len(due.trees)
    num_nodes = np.ones(len(rows), np.int64)
    num_nodes[:num_trees] = [turn.tree.num_nodes for turn in due.trees]
    roots = table.tokens[rows[num_trees:], committed_len[num_trees:]]
    num_pages = -(-(committed_len + num_nodes) // table.page_size)
    return TreeRows(
        tokens=np.concatenate([*(turn.tree.tokens for turn in due.trees), roots]),
        parents=np.concatenate([*(turn.tree.parents for turn in due.trees), np.full(len(roots), -1, np.int32)]),
        num_nodes=num_nodes,
        committed_len=committed_len,
        page_ids=table.pages_of(rows, num_pages),
    )
