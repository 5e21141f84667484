"""StepRoots: what the commit of a step needs and its launch knew already."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.step_trees import CommitRows
from target_service.sequence_table import SequenceTable
from target_service.step_plan import PlannedStep


@dataclass(frozen=True, slots=True, eq=False)
class StepRoots:
    """Of a step's trees [b]; looked up while the device computes."""

    rows: CommitRows
    stop_ids: frozenset[int]  # of any of the requests
    positions: list[int]  # of the roots
    stop_rows: list[int]  # past all of a tree's rows


def find_roots(planned: PlannedStep, table: SequenceTable) -> StepRoots:
    """Every tree's root lies at the position before its first new token, that of a prompt's last row included."""
    trees = planned.plan.trees
    base = trees.positions[trees.node_indptr[:-1]].astype(np.int64)
    return StepRoots(
        rows=CommitRows(planned.rows, base, table.limit[planned.rows] - 1 - base),
        stop_ids=frozenset().union(*(seq.stop_ids for seq in planned.seqs)),
        positions=base.tolist(),
        stop_rows=trees.node_indptr[1:].tolist(),
    )
