"""StepRoots: what the commit of a step needs and its launch knew already."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.step_trees import HEAD_BASE
from target_service.step_plan import PlannedStep


@dataclass(frozen=True, slots=True, eq=False)
class StepRoots:
    """Of a step's trees [b]; looked up while the device computes."""

    stop_ids: frozenset[int]  # of any of the requests
    positions: list[int]  # of the roots
    stop_rows: list[int]  # past all of a tree's rows


def find_roots(planned: PlannedStep) -> StepRoots:
    return StepRoots(
        stop_ids=frozenset().union(*[seq.stop_ids for seq in planned.seqs]),
        positions=planned.heads[HEAD_BASE].tolist(),
        stop_rows=planned.plan.trees.node_indptr[1:].tolist(),
    )
