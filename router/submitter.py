"""A waiting request's turn: to a target that takes it, or to its end."""

from __future__ import annotations

import asyncio
import enum

from paceline.errors import PacelineError
from paceline.types import SpeculationDecision
from router.fleet import Fleet
from router.live_request import LiveRequest
from router.metrics import RouterMetrics
from router.placement import (
    Demand,
    TargetView,
    check_possible,
    choose_target,
    clipped_max_tokens,
    pages_of,
    serves_model,
)
from router.speculation import SpeculationControl
from router.waiting_room import WaitingRoom


class Turn(enum.Enum):
    """What became of a request's turn."""

    OVER = enum.auto()  # submitted or ended
    HOLDS = enum.auto()  # waits for credits
    PASSED = enum.auto()  # no ready target serves its model


class Submitter:
    """Chooses the target, has the speculation decided, and starts the attempt. Lives on the event loop."""

    def __init__(
        self, fleet: Fleet, room: WaitingRoom, speculation: SpeculationControl, metrics: RouterMetrics
    ) -> None:
        self._fleet = fleet
        self._room = room
        self._speculation = speculation
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()

    def start(self, live: LiveRequest) -> Turn:
        """Gives a waiting request its turn. One that no target will ever take, or that is too late, ends."""
        demand = live.demand
        views = self._fleet.target_views()
        target = choose_target(views, demand)
        serving = [view for view in views if serves_model(view, demand)]
        if target is None and not serving:
            return Turn.PASSED
        try:
            if target is None:
                check_possible(demand, serving)
                return Turn.HOLDS
            self._room.check_still_possible(live)
        except PacelineError as error:
            self._room.leave(live)
            live.end(error)
        else:
            self._room.submitted(live)
            self.submit(live, target, demand)
        return Turn.OVER

    def submit(self, live: LiveRequest, target: TargetView, demand: Demand) -> None:
        """Starts an attempt on a target that takes it; the request has left the queue, or never waited there."""
        link = self._fleet.target(target.address)
        assert link.info is not None
        if not live.request.sampling.ignore_eos:
            live.stop_ids |= link.info.eos_token_ids
        live.model_fingerprint = target.model_fingerprint
        live.max_tokens = clipped_max_tokens(demand, target.context_length)
        decision = self._speculation.start(link, live)
        live.trace.attempt(live, target=target.address, decision=decision)
        link.submit(live, decision, max_tokens=live.max_tokens, pages=pages_of(demand, target))
        self._loop.call_soon(self._count, live, decision, self._loop.time() - live.queued_at)

    def _count(self, live: LiveRequest, decision: SpeculationDecision, waited_s: float) -> None:
        """After the link's writer, which sends the submission in this turn of the loop."""
        self._metrics.count_decision(decision)
        self._metrics.count_start(live, waited_s)
