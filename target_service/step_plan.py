"""From a schedule to the StepPlan that all ranks run, and the parameters that its trees sample with."""

from __future__ import annotations

from dataclasses import dataclass

from engine.plan import StepBuilder, StepPlan
from paceline.types import SamplingParams
from target_service.scheduler import ChunkTurn, Schedule, TreeTurn
from target_service.sequence import Sequence


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """The plan's trees are those of ``trees``, then one node for each of ``last_chunks``."""

    plan: StepPlan
    trees: list[TreeTurn]
    chunks: list[ChunkTurn]
    last_chunks: list[ChunkTurn]  # prompts that end in this step: their first token is sampled
    sampled: list[Sequence]  # one a tree of the plan

    @property
    def params(self) -> list[SamplingParams]:
        """One a tree of the plan."""
        return [seq.params for seq in self.sampled]

    @property
    def num_chunk_tokens(self) -> int:
        return sum(chunk.stop - chunk.start for chunk in self.chunks)

    @property
    def num_drafted_rows(self) -> int:
        """The plan's first rows, up to the last of a request that speculates: drafts are going to want some of them."""
        rows = last = 0
        for turn in self.trees:
            rows += turn.tree.num_nodes
            last = rows if turn.speculates else last
        return last

    @property
    def num_late(self) -> int:
        """Requests whose tree did not come in time."""
        return sum(turn.late for turn in self.trees)


def plan_step(schedule: Schedule, *, page_size: int) -> PlannedStep:
    """MUTATES the sequences that take part: the moves that their last round left are in the plan now."""
    builder = StepBuilder(page_size)
    for turn in schedule.trees:
        seq = turn.seq
        if seq.moves is not None:
            builder.move(*seq.moves)
            seq.moves = None
        builder.add_tree(seq.table, turn.tree, seq.committed_len)
    for chunk in schedule.chunks:
        tokens = chunk.seq.tokens[chunk.start : chunk.stop]
        builder.add_chunk(chunk.seq.table, tokens, chunk.start, sample=chunk.is_last)
    last_chunks = [chunk for chunk in schedule.chunks if chunk.is_last]
    sampled = [turn.seq for turn in schedule.trees] + [chunk.seq for chunk in last_chunks]
    return PlannedStep(builder.build(), schedule.trees, schedule.chunks, last_chunks, sampled)
