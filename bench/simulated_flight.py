"""Flight: a step of a simulated target that is under way."""

from __future__ import annotations

from dataclasses import dataclass

from bench.simulated_request import SimRequest
from paceline.types import TreeShape
from router.step_report import StepReport
from target_service.halves import SteppedTrees


@dataclass(slots=True, eq=False)
class Flight:
    """Times on the simulation's clock; end_s moves where a draft works beside the step."""

    chunks: list[tuple[SimRequest, int]]  # prompts, and how many tokens of each
    turns: list[SimRequest]  # decoding requests
    trees: list[TreeShape]  # of those that have one
    late: set[int]  # numbers of those whose tree did not come in time
    context_tokens: int  # of the turns
    watched: int  # decoding requests that drafts follow
    began_s: float
    end_s: float  # of the device's work
    wait_ms: float  # before it, for trees alone
    turnaround_ms: float  # from the ask for a tree of it until that was there, the longest; 0 without any
    is_plain: bool  # no request that it holds asks for trees
    is_queued: bool  # launched behind a step of other requests
    is_followed: bool = False  # a step of other requests was launched behind it

    @property
    def requests(self) -> list[SimRequest]:
        """All that take part."""
        return [*self.turns, *(request for request, _ in self.chunks)]

    @property
    def num_prompt_tokens(self) -> int:
        return sum(taken for _, taken in self.chunks)

    @property
    def rows(self) -> int:
        return self.num_prompt_tokens + len(self.turns) + sum(shape.num_draft_tokens - 1 for shape in self.trees)

    def mark(self) -> None:
        """MUTATES its requests: they take part in a step."""
        for request in self.requests:
            request.is_running = True
        for request, taken in self.chunks:
            request.pending += taken

    def unmark(self) -> None:
        """MUTATES its requests."""
        for request in self.requests:
            request.is_running, request.pending = False, 0

    def report(self, step_ms: float, *, decoding: int, prefilling: int) -> StepReport:
        """As a target tells its router."""
        return StepReport(
            decoding=decoding,
            rows=self.rows,
            prefill_tokens=self.num_prompt_tokens,
            requests=len(self.turns),
            drafted=len(self.trees),
            context_tokens=self.context_tokens,
            step_ms=step_ms,
            wait_ms=self.wait_ms,
            turnaround_ms=self.turnaround_ms,
            prefilling=prefilling,
        )

    def stepped_trees(self, step_ms: float, over_s: float, *, requests: int) -> SteppedTrees:
        """As a target tells itself, to choose between whole rounds and halves."""
        return SteppedTrees(
            requests=requests,
            rows=self.rows,
            prompt_tokens=self.num_prompt_tokens,
            trees=len(self.trees),
            nodes=sum(shape.num_draft_tokens for shape in self.trees),
            device_ms=(self.end_s - self.began_s) * 1e3,
            spent_ms=step_ms + self.wait_ms,
            over_s=over_s,
        )
