"""AdaptiveFleet: the adaptive policy of every target, calibrated by what the services measured of themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass

from paceline.address import host_of
from paceline.step_table import StepTable
from paceline.types import Rung, TreeShape
from router.acceptance import AcceptanceModel
from router.adaptive import RoundReport, TargetPolicy
from router.cost_model import CostModel
from router.cost_tables import ProposeTable
from router.fleet import Fleet
from router.live_request import LiveRequest
from router.peer import TargetLoad
from router.placement import Head
from router.plan_rows import PlannerSettings
from router.rungs import Ladder
from router.shape_menu import ShapeMenu
from router.step_report import StepReport
from router.target_link import TargetLink


@dataclass(frozen=True, slots=True)
class _Calibration:
    """A target's step times and the times of the drafts that fit its head, the slowest of each kind.

    shares_host: whether one of them runs on the target's host.
    """

    steps: tuple[tuple[int, float], ...]
    proposals: tuple[tuple[TreeShape, int, float], ...]
    shares_host: bool


class _Target:
    """The policy of one stream of a target; what it sent last."""

    def __init__(self, calibration: _Calibration, policy: TargetPolicy) -> None:
        self.calibration = calibration
        self.policy = policy
        self.load: TargetLoad | None = None  # worked in last
        self.joined: bool | None = None  # as the target was told last


class AdaptiveFleet:
    """One policy a target, one acceptance model a head: what one target's requests show counts for all.

    default: the tree to begin with, and that of targets and drafts that measured nothing (of another version).
    """

    def __init__(self, fleet: Fleet, default: TreeShape, *, clock: Callable[[], float]) -> None:
        self._fleet = fleet
        self._settings = PlannerSettings(default=default)
        self._fallback = (Rung(0, default),)
        self._clock = clock
        self._targets: dict[str, _Target] = {}
        self._models: dict[tuple[Head, tuple[TreeShape, ...]], AcceptanceModel] = {}
        self._at: dict[LiveRequest, str] = {}  # the target of each request that is planned for
        self._ladders: dict[LiveRequest, Ladder] = {}

    def forget(self, link: TargetLink) -> None:
        """A new stream stands: what an earlier one reported, and was told, is void."""
        self._targets.pop(link.address, None)
        self.refresh(link)

    def retain(self, addresses: Set[str]) -> None:
        """Targets that are none of these have left for good."""
        for address in self._targets.keys() - addresses:
            del self._targets[address]

    def refresh(self, link: TargetLink) -> None:
        """A draft came or went. The policy starts anew where that changes what it is calibrated by."""
        calibration = self._calibrate(link)
        held = self._targets.get(link.address)
        if calibration is None or (held is not None and held.calibration == calibration):
            return
        now_s = self._clock()
        target = self._targets[link.address] = _Target(calibration, self._make_policy(link, calibration, now_s))
        for live in link.flights():
            if self._at.get(live) == link.address:
                self._ladders[live] = target.policy.start(live, now_s, num_running=link.num_flights)

    def start(self, link: TargetLink, live: LiveRequest) -> None:
        """Plans for the request until ``stop``, and decides whether a draft is to follow it from the start."""
        self._at[live] = link.address
        if (target := self._targets.get(link.address)) is None:
            return
        num_running = max(link.load.num_requests, link.num_flights + 1)
        self._ladders[live] = target.policy.start(live, self._clock(), num_running=num_running)

    def stop(self, live: LiveRequest) -> None:
        """Again is fine."""
        address = self._at.pop(live, None)
        self._ladders.pop(live, None)
        if address is not None and (target := self._targets.get(address)) is not None:
            target.policy.end(live)

    def ladder(self, live: LiveRequest) -> Ladder:
        return self._ladders.get(live, self._fallback)

    def is_draftless(self, live: LiveRequest) -> bool:
        """Whether the request is planned for, and no draft is to follow it now."""
        target = self._targets.get(self._at.get(live, ""))
        return target is not None and not target.policy.follows(live)

    def take_rounds(self, link: TargetLink, rounds: Iterable[RoundReport]) -> None:
        """Before the requests that ended in them are stopped."""
        if (target := self._targets.get(link.address)) is not None:
            target.policy.take_rounds(rounds)

    def take_load(self, link: TargetLink) -> list[LiveRequest]:
        """Works in the load that the link reported last. Returns the requests whose ladders changed, or that are to get
        a draft or to lose theirs."""
        target = self._targets.get(link.address)
        if target is None or link.load is target.load:
            return []
        target.load = link.load
        now_s = self._clock()
        target.policy.take_step(_report(link.load), now_s)
        changed: dict[LiveRequest, None] = {}
        if target.policy.is_due(now_s):
            for key, ladder in target.policy.plan(now_s).items():
                assert isinstance(key, LiveRequest)
                self._ladders[key] = ladder
                changed[key] = None
            for key in target.policy.revise_following(now_s):
                assert isinstance(key, LiveRequest)
                changed[key] = None
        joined = target.policy.joined
        if joined or target.joined is not None:
            # Of nothing that is planned: as targets do untold, where trees come soon.
            joined |= target.policy.num_requests == 0
            if joined != target.joined:
                target.joined = joined
                link.set_batch_policy(join_rounds=joined)
        return list(changed)

    def _calibrate(self, link: TargetLink) -> _Calibration | None:
        assert link.info is not None
        slowest: dict[tuple[TreeShape, int], float] = {}
        shares_host = False
        for draft in self._fleet.drafts:
            if draft.info is not None and draft.info.head == link.info.head:
                shares_host |= host_of(draft.address) == host_of(link.address)
                for shape, sessions, ms in draft.info.propose_times:
                    slowest[shape, sessions] = max(ms, slowest.get((shape, sessions), 0.0))
        if not slowest or not link.info.step_times:
            return None
        proposals = tuple((*key, ms) for key, ms in slowest.items())
        return _Calibration(link.info.step_times, proposals, shares_host)

    def _make_policy(self, link: TargetLink, calibration: _Calibration, now_s: float) -> TargetPolicy:
        assert link.info is not None
        proposals = ProposeTable(calibration.proposals)
        key = link.info.head, tuple(proposals.growths)
        if key not in self._models:
            self._models[key] = AcceptanceModel(ShapeMenu(proposals.growths))
        steps = StepTable(calibration.steps)
        overlaps = link.info.overlaps_rounds
        costs = CostModel(steps, proposals, shares_host=calibration.shares_host, overlaps=overlaps)
        return TargetPolicy(self._models[key], costs, self._settings, now_s=now_s)


def _report(load: TargetLoad) -> StepReport:
    return StepReport(
        decoding=load.decoding_requests,
        rows=load.rows,
        prefill_tokens=load.prefill_tokens,
        requests=load.verified_requests,
        drafted=load.drafted_requests,
        context_tokens=load.context_tokens,
        step_ms=load.step_ms,
        wait_ms=load.tree_wait_ms,
        turnaround_ms=load.tree_turnaround_ms,
        prefilling=load.prefilling_requests,
    )
