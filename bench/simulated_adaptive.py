"""SimAdaptive: the router's own policy in a simulation."""

from __future__ import annotations

from bench.simulated_request import SimRequest
from bench.simulated_router import SimRound
from bench.simulated_world import World
from paceline.types import SpeculationDecision, TreeShape
from router.acceptance import AcceptanceModel
from router.adaptive import RoundReport, TargetPolicy
from router.cost_model import CostModel
from router.plan_rows import PlannerSettings
from router.rungs import Ladder
from router.shape_menu import ShapeMenu
from router.step_report import StepReport


class SimAdaptive:
    """calibration: what the services measured of themselves, which need not be the truth of the world."""

    def __init__(self, calibration: World, settings: PlannerSettings | None = None, *, num_targets: int = 1) -> None:
        self._model = AcceptanceModel(ShapeMenu(calibration.proposals.growths))
        shares_host = calibration.shares_host or calibration.follow_ms > 0
        costs = [
            CostModel(calibration.steps, calibration.proposals, shares_host=shares_host, overlaps=calibration.overlaps)
            for _ in range(num_targets)
        ]
        self.policies = [TargetPolicy(self._model, its, settings or PlannerSettings(), now_s=0.0) for its in costs]
        self.changes: list[tuple[float, int]] = []  # when, whose
        self._decisions: dict[int, SpeculationDecision] = {}
        self._places: dict[int, int] = {}  # the target of each request
        self._has_joined: set[int] = set()

    def begin(self) -> None:
        """For a simulation that comes after another: without requests, with all that was learnt and planned."""
        for number, target in self._places.items():
            self.policies[target].end(number)
        self._decisions.clear()
        self._places.clear()

    def start(self, target: int, request: SimRequest) -> None:
        policy = self.policies[target]
        num_running = policy.num_requests + 1
        self._places[request.number] = target
        self._decide(request.number, policy.start(request.number, request.arrived_s, num_running=num_running))

    def end(self, target: int, request: SimRequest) -> None:
        self.policies[target].end(request.number)
        del self._decisions[request.number], self._places[request.number]

    def shape(self, request: SimRequest, decoding: int) -> TreeShape | None:
        return self._decisions[request.number].shape_for(decoding) if self.follows(request) else None

    def follows(self, request: SimRequest) -> bool:
        return self.policies[self._places[request.number]].follows(request.number)

    def report(self, target: int, step: StepReport, rounds: list[SimRound], now_s: float) -> None:
        policy = self.policies[target]
        policy.take_rounds([RoundReport(r.number, r.shape, r.accepted, r.late) for r in rounds])
        policy.take_step(step, now_s)
        if policy.is_due(now_s):
            for key, ladder in policy.plan(now_s).items():
                assert isinstance(key, int)
                self._decide(key, ladder)
                self.changes.append((now_s, key))
            policy.revise_following(now_s)

    def hear(self, target: int, step: StepReport, now_s: float) -> None:
        """A step of requests whose shapes others decide."""
        self.policies[target].take_step(step, now_s)

    def is_joined(self, target: int) -> bool | None:
        """As an AdaptiveFleet tells it: nothing before trees are to join, and True while nothing is planned for."""
        policy = self.policies[target]
        if policy.joined:
            self._has_joined.add(target)
        return policy.joined or policy.num_requests == 0 if target in self._has_joined else None

    def _decide(self, number: int, ladder: Ladder) -> None:
        self._decisions[number] = SpeculationDecision("draft", ladder)
