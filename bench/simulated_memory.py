"""TargetMemory: what a simulated target learns from its steps, by target_service's own rules."""

from __future__ import annotations

from dataclasses import dataclass

from bench.simulated_world import World
from target_service.deadline import StepTimes, TreeDeadline
from target_service.halves import Halves
from target_service.patience import Patience
from target_service.speculation_stats import AcceptanceWindow
from target_service.tree_wait import TreeWait


@dataclass(frozen=True, slots=True)
class TargetMemory:
    """Lasts from one simulation to the next of the same services."""

    times: StepTimes
    window: AcceptanceWindow
    deadline: TreeDeadline
    tree_wait: TreeWait
    halves: Halves
    patience: tuple[Patience, ...]  # with each draft


def new_memory(world: World, num_drafts: int) -> TargetMemory:
    """Of a target that warmed up, and served nobody yet."""
    table = world.warm_steps or world.steps
    times = StepTimes([round(rows) for rows in table.rows], table.ms.tolist())
    window = AcceptanceWindow()
    return TargetMemory(
        times,
        window,
        TreeDeadline(times, window, fixed_ms=None),
        TreeWait(times),
        Halves(times, enabled=world.overlaps),
        tuple(Patience() for _ in range(num_drafts)),
    )
