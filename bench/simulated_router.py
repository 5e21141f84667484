"""SimRouter: what a simulation asks a policy, and tells it; and the policies with one setting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from bench.simulated_request import SimRequest
from paceline.types import TreeShape
from router.step_report import StepReport


@dataclass(frozen=True, slots=True)
class SimRound:
    """One round of a request that asked for a tree."""

    number: int
    shape: TreeShape
    accepted: int
    late: bool


class SimRouter(Protocol):
    """Targets go by their numbers."""

    def start(self, target: int, request: SimRequest) -> None:
        """The request goes to the target."""

    def end(self, target: int, request: SimRequest) -> None:
        """It has all its tokens."""

    def shape(self, request: SimRequest, decoding: int) -> TreeShape | None:
        """What its decision says while so many requests of the target decode."""

    def follows(self, request: SimRequest) -> bool:
        """Whether a draft keeps up with the request."""

    def report(self, target: int, step: StepReport, rounds: list[SimRound], now_s: float) -> None:
        """One step of the target."""

    def is_joined(self, target: int) -> bool | None:
        """Whether prompts and plain requests wait for the trees; None where the target is to decide."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """One shape for all, or none."""

    fixed_shape: TreeShape | None
    joined: bool | None = None

    def start(self, target: int, request: SimRequest) -> None:
        pass

    def end(self, target: int, request: SimRequest) -> None:
        pass

    def shape(self, request: SimRequest, decoding: int) -> TreeShape | None:
        return self.fixed_shape

    def follows(self, request: SimRequest) -> bool:
        return self.fixed_shape is not None

    def report(self, target: int, step: StepReport, rounds: list[SimRound], now_s: float) -> None:
        pass

    def is_joined(self, target: int) -> bool | None:
        return self.joined
