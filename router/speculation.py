"""The decisions in force: one switch a target, one decision a request, changed where load or drafts change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set

from paceline.types import SpeculationDecision
from router.adaptive import RoundReport
from router.adaptive_fleet import AdaptiveFleet
from router.fleet import Fleet
from router.live_request import LiveRequest
from router.metrics import RouterMetrics
from router.placement import choose_draft, keep_draft
from router.policy import Policy, PolicyKind, decide, initial_switch, is_planned, turned, wants_draft
from router.target_link import TargetLink


class SpeculationControl:
    """Keeps each request's draft and decision, and counts the requests that name each draft."""

    def __init__(self, policy: Policy, fleet: Fleet, metrics: RouterMetrics, *, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._fleet = fleet
        self._metrics = metrics
        self._switches = {link.address: initial_switch(policy) for link in fleet.targets}
        self._adaptive = AdaptiveFleet(fleet, policy.shape, clock=clock)
        self._links: dict[str, Mapping[str, bool] | None] = {}  # each target's to drafts, as revised last

    def start(self, link: TargetLink, live: LiveRequest) -> SpeculationDecision:
        """The decision for an attempt on this target, not counted yet; names its draft until ``stop``."""
        if is_planned(self._policy, live.request.override):
            self._adaptive.start(link, live)
        self._name_draft(live, self._best_draft(link) if self._wants_draft(live) else "")
        return self._decide(link, live)

    def stop(self, live: LiveRequest) -> None:
        """The request left its target. Again is fine."""
        self._name_draft(live, "")
        self._adaptive.stop(live)

    def forget_load(self, link: TargetLink) -> None:
        """A new stream stands: what an earlier one reported is void."""
        self._switches[link.address] = initial_switch(self._policy)
        if self._is_adaptive:
            self._adaptive.forget(link)

    def retain(self, addresses: Set[str]) -> None:
        """Targets that are none of these have left for good."""
        for address in self._switches.keys() - addresses:
            del self._switches[address]
            self._links.pop(address, None)
        self._adaptive.retain(addresses)

    def take_rounds(self, link: TargetLink, rounds: Sequence[RoundReport]) -> None:
        """How rounds of its requests went."""
        if self._is_adaptive:
            self._adaptive.take_rounds(link, rounds)

    def take_load(self, link: TargetLink) -> None:
        """Works in the load that the link reported last."""
        switch = self._switches[link.address]
        after = turned(self._policy, switch, link.load.decoding_requests)
        links = link.load.draft_links
        if after is not switch or links != self._links.get(link.address):
            self._switches[link.address] = after
            self._links[link.address] = links
            self.revise(link)
        if self._is_adaptive:
            changed = self._adaptive.take_load(link)
            for live in changed:
                if not self._wants_draft(live):
                    self._name_draft(live, "")
                elif not live.draft:
                    self._name_draft(live, self._best_draft(link))
            self._send(link, changed)

    def revise(self, link: TargetLink) -> None:
        """Sends every request of the target whose decision is another now its new one.

        A draft that went away, or that the target cannot reach, is replaced where another fits.
        """
        assert link.info is not None
        if self._is_adaptive:
            self._adaptive.refresh(link)
        head, links = link.info.head, link.load.draft_links or {}
        for live in link.flights():
            wants = self._wants_draft(live)
            draft = keep_draft(live.draft, self._fleet.draft_views(), head, links=links) if wants else ""
            self._name_draft(live, draft)
        self._send(link, link.flights())

    def _wants_draft(self, live: LiveRequest) -> bool:
        return wants_draft(self._policy, live.request.override) and not self._adaptive.is_draftless(live)

    @property
    def _is_adaptive(self) -> bool:
        return self._policy.kind is PolicyKind.ADAPTIVE

    def _send(self, link: TargetLink, lives: Iterable[LiveRequest]) -> None:
        """To those whose decision is another now, the new one."""
        for live in lives:
            assert live.flight is not None
            if (decision := self._decide(link, live)) != live.flight.decision:
                self._metrics.count_decision(decision)
                link.update(live, decision)

    def _decide(self, link: TargetLink, live: LiveRequest) -> SpeculationDecision:
        switch = self._switches[link.address]
        if self._adaptive.is_draftless(live):
            return SpeculationDecision(reason=switch.reason)
        return decide(
            self._policy,
            switch,
            override=live.request.override,
            draft=live.draft,
            ladder=self._adaptive.ladder(live) if self._is_adaptive else (),
        )

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
