"""SimAdaptive: the router's own policy in a simulation."""

from __future__ import annotations

from bench.simulated_request import SimRequest
from bench.simulated_router import SimRound
from bench.simulated_world import World
from paceline.types import SpeculationDecision, TreeShape
from router.acceptance import AcceptanceModel
from router.adaptive import RoundReport, StepReport, TargetPolicy
from router.cost_model import CostModel
from router.plan_rows import PlannerSettings
from router.rungs import Ladder
from router.shape_menu import ShapeMenu


class SimAdaptive:
    """calibration: what the services measured of themselves, which need not be the truth of the world."""

    def __init__(self, calibration: World, settings: PlannerSettings | None = None, *, num_targets: int = 1) -> None:
        self._model = AcceptanceModel(ShapeMenu(calibration.proposals.growths))
        shares_host = calibration.shares_host or calibration.follow_ms > 0
        self._settings = settings or PlannerSettings()
        self._costs = [
            CostModel(calibration.steps, calibration.proposals, shares_host=shares_host, overlaps=calibration.overlaps)
            for _ in range(num_targets)
        ]
        self.begin()

    def begin(self) -> None:
        """For another simulation: without requests, at second 0, with all that was learnt."""
        self.policies = [TargetPolicy(self._model, costs, self._settings, now_s=0.0) for costs in self._costs]
        self.changes: list[tuple[float, int]] = []  # when, whose
        self._decisions: dict[int, SpeculationDecision] = {}
        self._places: dict[int, int] = {}  # the target of each request

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

    def is_joined(self, target: int) -> bool:
        return self.policies[target].joined

    def _decide(self, number: int, ladder: Ladder) -> None:
        self._decisions[number] = SpeculationDecision("draft", ladder)
