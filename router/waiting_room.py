"""Who may wait for a target, for how long, and whose turn it is: admission, the queue, and what it learns of them."""

from __future__ import annotations

import asyncio

from paceline.errors import CapacityError, DeadlineError, UnavailableError
from paceline.types import FinishReason
from router.config import RouterConfig
from router.deadlines import Outlook, check_deadline
from router.fleet import Fleet
from router.live_request import LiveRequest
from router.placement import serves_model
from router.queue import Claim, RequestQueue, rank_of
from router.rates import DrainRate, RecentRatio
from router.target_pacing import TargetPacing

_OUTPUT_MEMORY_S = 60.0
_HINT_S = (0.1, 60.0)  # least and most of a retry hint
_UNKNOWN_HINT_S = 1.0  # while no rate is known


class WaitingRoom:
    """Owns the queue and the timers of those that wait in it. Lives on the event loop."""

    def __init__(self, config: RouterConfig, fleet: Fleet, pacing: TargetPacing) -> None:
        self.queue: RequestQueue[LiveRequest] = RequestQueue(config.max_queued_requests)
        self._config = config
        self._weights = config.weights()
        self._fleet = fleet
        self._pacing = pacing
        self._loop = asyncio.get_running_loop()
        self._drain = DrainRate()
        self._output_share = RecentRatio(_OUTPUT_MEMORY_S)  # tokens given by tokens asked for
        self._ready_at: dict[str, float] = {}  # when a ready target of each model was last heard

    def pass_by(self, live: LiveRequest) -> None:
        """A newcomer that a target takes at once, for nobody waits. Raises DeadlineError where that is too late."""
        live.queued_at = live.submitted_at = now = self._loop.time()
        if live.deadline is not None:
            check_deadline(Outlook(None, self._service_s(live)), live.deadline - now)

    def enter(self, live: LiveRequest) -> None:
        """Queues a newcomer.

        Raises CapacityError where the queue is full or too long for its deadline, DeadlineError where none would do.
        """
        now = self._loop.time()
        terms = live.request.terms
        weight = self._weights.get(terms.tenant, 1.0)
        rank = rank_of(live.started_at, terms.priority, ageing_s=self._config.priority_ageing_s)
        claim = Claim(terms.tenant, len(live.request.prompt_ids) + self._output_tokens(live), rank)
        if live.deadline is not None:
            wait_s = None
            if rate := self._drain.read(now):
                wait_s = (self.queue.cost_ahead(claim, weight=weight) + claim.cost) / rate
            check_deadline(Outlook(wait_s, self._service_s(live)), live.deadline - now)
        try:
            displaced = self.queue.push(live, claim, weight=weight)
        except CapacityError as error:
            raise self._refusal(str(error)) from error
        live.claim = claim
        if displaced is not None:
            self.leave(displaced)
            displaced.end(self._refusal("the router's queue is full, and a request came that goes before this one"))
        self._wait(live)

    def come_back(self, live: LiveRequest) -> None:
        """A request that needs another attempt goes to the front."""
        self.queue.push_front(live)
        self._wait(live)

    def submitted(self, live: LiveRequest) -> None:
        """It had its turn."""
        if live.submitted_at is None:
            live.submitted_at = self._loop.time()
            assert live.claim is not None  # it waited
            self._drain.took(live.claim.cost, live.submitted_at)
        self.queue.take(live)
        self.leave(live)

    def leave(self, live: LiveRequest) -> None:
        """It waits no longer, for whatever reason; again is fine."""
        self.queue.discard(live)
        if not self.queue:
            self._drain.empty()
        if live.queue_timer is not None:
            live.queue_timer.cancel()
            live.queue_timer = None

    def ended(self, live: LiveRequest) -> None:
        """Learns from a request that is over: what it cost, and how much of its length it used."""
        self.leave(live)
        if live.submitted_at is None:
            return
        num_tokens = len(live.emitted)
        if live.claim is not None:
            self.queue.settle(live.claim.tenant, live.claim.cost - len(live.request.prompt_ids) - num_tokens)
        if isinstance(live.outcome, FinishReason) and not live.request.sampling.ignore_eos:
            self._output_share.add(num_tokens, live.max_tokens, self._loop.time())

    def pumped(self) -> None:
        """No target takes more for now."""
        if self.queue:
            self._drain.waits(self._loop.time())

    def heard(self, model_fingerprint: str) -> None:
        """A ready target of this model said something."""
        self._ready_at[model_fingerprint] = self._loop.time()

    def check_still_possible(self, live: LiveRequest) -> None:
        """Raises DeadlineError where a request that has its turn can no longer be done in time."""
        if live.deadline is None or live.emitted:
            return
        left_s, service_s = live.deadline - self._loop.time(), self._service_s(live)
        if service_s is not None and service_s > left_s:
            raise DeadlineError(
                f"{left_s:.3g} s are left after the queue, and the answer would take about {service_s:.3g} s: "
                "allow more time, ask for fewer tokens, or send it when the router is less busy"
            )

    def _wait(self, live: LiveRequest) -> None:
        live.queued_at = self._loop.time()
        live.queue_timer = self._loop.call_later(self._config.queue_timeout_s, self._time_out, live)

    def _time_out(self, live: LiveRequest) -> None:
        """Ends a request that no target could be reached for; one that waits for credits waits on."""
        demand = live.demand
        timeout_s = self._config.queue_timeout_s
        fitting = [at for model, at in self._ready_at.items() if demand.model_fingerprint in ("", model)]
        deadline = max([live.queued_at, *fitting]) + timeout_s
        if any(serves_model(view, demand) for view in self._fleet.target_views()):
            deadline = self._loop.time() + timeout_s
        if deadline > self._loop.time():
            live.queue_timer = self._loop.call_at(deadline, self._time_out, live)
            return
        states = self._fleet.target_messages()
        self.leave(live)
        live.end(UnavailableError(f"no target could be reached for {timeout_s:g} s ({states}); start one"))

    def _output_tokens(self, live: LiveRequest) -> float:
        """That it is expected to generate."""
        request = live.request
        most = request.sampling.max_tokens
        context_length = self._fleet.limits().context_length
        if context_length:
            most = min(most, context_length - len(request.prompt_ids))
        if request.sampling.ignore_eos:
            return most
        share = self._output_share.read(self._loop.time())
        return max(1.0, most * (1.0 if share is None else share))

    def _service_s(self, live: LiveRequest) -> float | None:
        return self._pacing.service_s(len(live.request.prompt_ids), self._output_tokens(live))

    def _refusal(self, message: str) -> CapacityError:
        """With the time until half of the queue is likely to have left: later, slots would stand empty."""
        rate = self._drain.read(self._loop.time())
        retry_after_s = min(max(self.queue.cost / 2 / rate, _HINT_S[0]), _HINT_S[1]) if rate else _UNKNOWN_HINT_S
        return CapacityError(f"{message}; try again in {retry_after_s:.3g} s", retry_after_s=retry_after_s)
