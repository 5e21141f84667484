"""The policies that a simulation compares: fixed ones, and the router's own."""

from __future__ import annotations

from bench.simulated_world import World
from bench.simulator import Router, SimRequest, StepDone
from paceline.types import TreeShape
from router.acceptance import AcceptanceModel
from router.adaptive import RoundReport, StepReport, TargetPolicy
from router.cost_model import CostModel
from router.planner import Ladder, PlannerSettings
from router.shape_menu import ShapeMenu


class Fixed(Router):
    """Every request the same shape, or none."""

    def __init__(self, shape: TreeShape | None, *, joined: bool = False) -> None:
        self._shape = shape
        self._joined = joined

    def shape(self, target: int, request: SimRequest, decoding: int) -> TreeShape | None:
        return self._shape

    def joined(self, target: int) -> bool:
        return self._joined


class Adaptive(Router):
    """The router's policy. calibration: what services measured of themselves, which need not be the world's truth."""

    def __init__(self, calibration: World, settings: PlannerSettings | None = None, *, num_targets: int = 1) -> None:
        menu = ShapeMenu(calibration.proposals.growths)
        model = AcceptanceModel(menu)
        self.targets = [
            TargetPolicy(
                model,
                CostModel(calibration.steps, calibration.proposals),
                settings or PlannerSettings(),
                now_s=0.0,
            )
            for _ in range(num_targets)
        ]
        self.ladders: dict[int, Ladder] = {}
        self.changes = 0

    def start(self, target: int, request: SimRequest) -> None:
        self.ladders[request.number] = self.targets[target].start(request.number, request.arrived_s)

    def end(self, target: int, request: SimRequest) -> None:
        self.targets[target].end(request.number)
        self.ladders.pop(request.number, None)

    def shape(self, target: int, request: SimRequest, decoding: int) -> TreeShape | None:
        for rung in self.ladders[request.number]:
            if rung.max_running_requests == 0 or decoding <= rung.max_running_requests:
                return rung.shape
        return None

    def report(self, done: StepDone, now_s: float) -> None:
        policy = self.targets[done.target]
        policy.take_step(
            StepReport(
                decoding=done.decoding,
                rows=done.rows,
                prefill_tokens=done.prefill_tokens,
                requests=done.requests,
                drafted=done.drafted,
                context_tokens=done.context_tokens,
                step_ms=done.step_ms,
                wait_ms=done.wait_ms,
            ),
            now_s,
        )
        policy.take_rounds(RoundReport(*round_) for round_ in done.rounds)
        if policy.is_due(now_s):
            for key, ladder in policy.plan(now_s).items():
                assert isinstance(key, int)
                self.ladders[key] = ladder
                self.changes += 1

    def joined(self, target: int) -> bool:
        return self.targets[target].joined
