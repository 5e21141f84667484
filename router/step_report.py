"""StepReport: what a router hears of a target's step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step of a target as it reports it; counts are for all routers together."""

    decoding: int  # requests past their prompt
    rows: int
    prefill_tokens: int
    requests: int  # that verified in it
    drafted: int  # of them with more than one node
    context_tokens: int
    step_ms: float
    wait_ms: float  # before it, for trees alone
    turnaround_ms: float = 0.0  # from the asks for its trees to the last of them; 0: not known
    prefilling: int = 0  # requests whose prompt is not done

    @property
    def tree_nodes(self) -> int:
        """Of all requests with more than one node."""
        return self.rows - self.prefill_tokens - (self.requests - self.drafted)
