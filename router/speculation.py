"""The decisions in force: one switch a target, one decision a request, changed where load or drafts change."""

from __future__ import annotations

from paceline.types import SpeculationDecision
from router.fleet import Fleet
from router.live_request import LiveRequest
from router.metrics import RouterMetrics
from router.placement import choose_draft
from router.policy import Policy, decide, initial_switch, turned, wants_draft
from router.target_link import TargetLink


class SpeculationControl:
    """Keeps each request's draft and decision, and counts the requests that name each draft."""

    def __init__(self, policy: Policy, fleet: Fleet, metrics: RouterMetrics) -> None:
        self._policy = policy
        self._fleet = fleet
        self._metrics = metrics
        self._switches = {link.address: initial_switch(policy) for link in fleet.targets}

    def start(self, link: TargetLink, live: LiveRequest) -> SpeculationDecision:
        """The decision for an attempt on this target; names its draft until ``stop``."""
        draft = self._best_draft(link) if wants_draft(self._policy, live.request.override) else ""
        self._name_draft(live, draft)
        return self._decide(link, live)

    def stop(self, live: LiveRequest) -> None:
        """The request left its target. Again is fine."""
        self._name_draft(live, "")

    def forget_load(self, link: TargetLink) -> None:
        """A new stream stands: what an earlier one reported is void."""
        self._switches[link.address] = initial_switch(self._policy)

    def take_load(self, link: TargetLink) -> None:
        """Works in the load that the link reported last."""
        switch = self._switches[link.address]
        after = turned(self._policy, switch, link.load.decoding_requests)
        if after is not switch:
            self._switches[link.address] = after
            self.revise(link)

    def revise(self, link: TargetLink) -> None:
        """Sends every request of the target whose decision is another now its new one.

        A draft that went away is replaced where another fits; else it stays named, for it may come back.
        """
        usable = {view.address for view in self._fleet.draft_views() if view.ready}
        for live in link.flights():
            if live.draft not in usable and wants_draft(self._policy, live.request.override):
                self._name_draft(live, self._best_draft(link) or live.draft)
            assert live.flight is not None
            if (decision := self._decide(link, live)) != live.flight.decision:
                link.update(live, decision)

    def _decide(self, link: TargetLink, live: LiveRequest) -> SpeculationDecision:
        switch = self._switches[link.address]
        decision = decide(self._policy, switch, override=live.request.override, draft=live.draft)
        if live.flight is None or decision != live.flight.decision:
            self._metrics.count_decision(decision)
        return decision

    def _best_draft(self, link: TargetLink) -> str:
        assert link.info is not None
        return choose_draft(self._fleet.draft_views(), link.info.head, links=link.load.draft_links or {})

    def _name_draft(self, live: LiveRequest, draft: str) -> None:
        counts = self._fleet.requests_by_draft
        if live.draft:
            counts[live.draft] -= 1
        if draft:
            counts[draft] += 1
        live.draft = draft
