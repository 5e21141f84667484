"""RoundRecord: the structures of one step, kept as they are until someone asks to see them."""

from __future__ import annotations

from dataclasses import dataclass

from engine.plan import StepPlan
from kernels.ops import WalkResult


@dataclass(frozen=True, slots=True, eq=False)
class RoundRecord:
    """One step. Sampled requests in the order of the plan's trees; none where prompt chunks alone ran."""

    step: int
    time_s: float  # since 1970
    plan: StepPlan
    num_decoding: int  # of the plan's trees: the first ones; the rest are the first tokens after prompts
    walk: WalkResult
    sessions: list[tuple[int, int]]  # session and round of each tree; 0 without a session
    ended: list[int]  # trees whose requests ended in this step
    # "wait" (from the last commit on, for trees alone), "plan", "host" (launch, and looking for the result), "forward",
    # "sample", "commit", "extend" (the asks for what follows)
    timings_ms: dict[str, float]
