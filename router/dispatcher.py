"""From the queue to the targets and back: submits against credits, replays what comes back, ends what cannot go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from paceline.errors import DeadlineError, MismatchError, UnavailableError
from paceline.plumbing import Plumbing
from paceline.types import FinishReason
from router.adaptive import RoundReport
from router.config import RouterConfig
from router.draft_link import DraftLink
from router.fleet import Fleet
from router.fleet_metrics import FleetCollector
from router.live_request import Arrival, LiveRequest
from router.members import Members
from router.metrics import RouterMetrics
from router.peer import PeerInfo
from router.placement import choose_target
from router.request import ClientRequest
from router.serve_codec import NO_CREDIT, encode_hello
from router.speculation import SpeculationControl
from router.stream_pacer import StreamPacer
from router.submitter import Submitter, Turn
from router.target_link import TargetLink
from router.target_pacing import TargetPacing
from router.text.tokenizer import TextTokenizer
from router.waiting_room import WaitingRoom

_log = logging.getLogger(__name__)


class Dispatcher:
    """Owns the queue, the links and every live request between ``admit`` and ``release``.

    Lives on one event loop. Whatever becomes submittable within a turn of the loop leaves in one message a target. A
    request that finds nobody waiting and a target that takes it is submitted in the turn of its arrival.
    """

    def __init__(
        self,
        config: RouterConfig,
        *,
        incarnation: int,
        tokenizer: TextTokenizer,
        metrics: RouterMetrics,
        plumbing: Plumbing,
    ) -> None:
        self.incarnation = incarnation
        self._config = config
        self._tokenizer_fingerprint = tokenizer.fingerprint
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        hello = encode_hello(f"{config.host}:{config.port}", incarnation)

        def make_target(address: str) -> TargetLink:
            return TargetLink(address, self, hello=hello, timeout_s=config.target_timeout_s, plumbing=plumbing)

        def make_draft(address: str) -> DraftLink:
            return DraftLink(address, self, plumbing)

        self.fleet = Fleet(
            Members(config.watch("targets"), make_target, kind="target"),
            Members(config.watch("drafts"), make_draft, kind="draft"),
            tokenizer_vocab_size=tokenizer.vocab_size,
        )
        self._pacing = TargetPacing(config.target_tpot_ms, clock=self._loop.time)
        self._room = WaitingRoom(config, self.fleet, self._pacing)
        self.queue = self._room.queue
        self._speculation = SpeculationControl(config.policy(), self.fleet, metrics, clock=self._loop.time)
        self._submitter = Submitter(self.fleet, self._room, self._speculation, metrics)
        self._pacer = StreamPacer(config.stream_interval, loop=self._loop)
        self._live: set[LiveRequest] = set()
        self._draining = False
        self._idle = asyncio.Event()
        self._pump_scheduled = False
        metrics.watch(FleetCollector(self.fleet, self.queue))

    @property
    def num_live(self) -> int:
        return len(self._live)

    @property
    def lives(self) -> AbstractSet[LiveRequest]:
        """Every request between ``admit`` and ``release``."""
        return self._live

    @property
    def is_draining(self) -> bool:
        return self._draining

    async def run(self) -> None:
        """Keeps the links up until cancelled."""
        await self.fleet.run()

    def check_open(self) -> None:
        """Raises UnavailableError while draining."""
        if self._draining:
            raise UnavailableError("the router is draining; send the request to another one")

    def admit(self, request: ClientRequest, arrival: Arrival) -> LiveRequest:
        """Submits a request, or queues it.

        Raises UnavailableError while draining, CapacityError where the queue is full or too long for the deadline,
        and DeadlineError where the deadline cannot be met at all.
        """
        self.check_open()
        live = LiveRequest(request, arrival, pacer=self._pacer, buffer_tokens=self._config.client_buffer_tokens)
        demand = live.demand
        target = None if self.queue else choose_target(self.fleet.target_views(), demand)
        if target is None:
            self._room.enter(live)
            self._schedule_pump()
        else:
            self._room.pass_by(live)
            self._submitter.submit(live, target, demand)
        self._live.add(live)
        if live.deadline is not None:
            live.deadline_timer = self._loop.call_at(live.deadline, self._deadline_passed, live)
        return live

    def release(self, live: LiveRequest) -> None:
        """The client has all of it or is gone: cancels what still runs and frees all state."""
        if live not in self._live:
            return
        self._live.remove(live)
        self._pacer.forget(live)
        if live.deadline_timer is not None:
            live.deadline_timer.cancel()
        self._stop(live)
        self._room.ended(live)
        self._metrics.count_end(live, self._loop.time())
        if not self._live:
            self._idle.set()

    def refuse_new(self) -> None:
        """From now on ``admit`` and ``check_open`` raise."""
        self._draining = True

    async def drained(self, timeout_s: float) -> bool:
        """Returns once every live request was released, False where the time did not do."""
        if not self._live:
            return True
        self._idle.clear()
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            _log.warning("%d requests still run after %g s of draining", len(self._live), timeout_s)
            return False
        return True

    def check_info(self, info: PeerInfo) -> None:
        theirs, ours = info.tokenizer_fingerprint, self._tokenizer_fingerprint
        if theirs and theirs != ours:
            raise MismatchError(
                f"its tokenizer is {theirs[:12]}, this router's {ours[:12]}; give both one --model-path"
            )

    def on_ready(self, link: TargetLink) -> None:
        """The moment, too, to forget the targets that have left: as many as come anew."""
        known = {target.address for target in self.fleet.targets} | {link.address}
        self._speculation.retain(known)
        self._pacing.retain(known)
        self._speculation.forget_load(link)
        self._speculation.take_load(link)
        self._schedule_pump()

    def on_step(self, link: TargetLink, *, new_tokens: int, opened: bool) -> None:
        if new_tokens:
            self._metrics.generation_tokens.inc(new_tokens)
        if link.ready and link.info is not None:
            self._room.heard(link.info.model_fingerprint)
        self._pacing.take_step(link, new_tokens=new_tokens)
        self._speculation.take_load(link)
        if opened and self.queue:
            self._schedule_pump()

    def on_rounds(self, link: TargetLink, rounds: Sequence[RoundReport]) -> None:
        self._speculation.take_rounds(link, rounds)

    def on_end(self, live: LiveRequest) -> None:
        self._metrics.count_rounds(live)
        self._speculation.stop(live)

    def on_return(self, link: TargetLink, live: LiveRequest, reason: str) -> None:
        self._retry(link, live, reason)

    def on_lost(self, link: TargetLink, lives: list[LiveRequest]) -> None:
        self._pacing.forget(link)
        if lives:
            _log.warning("target %s is lost; %d requests go elsewhere", link.address, len(lives))
        for live in reversed(lives):
            self._retry(link, live, "lost")

    def on_draft_changed(self, link: DraftLink) -> None:
        for target in self.fleet.targets:
            if target.info is not None:
                self._speculation.revise(target)

    def _stop(self, live: LiveRequest) -> None:
        """It runs no longer; again is fine."""
        if live.flight is not None:
            live.flight.link.cancel(live)
        self._speculation.stop(live)

    def _deadline_passed(self, live: LiveRequest) -> None:
        where = "while it waited in the queue" if live.flight is None else f"after {len(live.emitted)} tokens"
        self._room.leave(live)
        self._stop(live)
        live.end(DeadlineError(f"the deadline passed {where}; allow more time or ask for fewer tokens"))

    def _schedule_pump(self) -> None:
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Submits what the targets take: first what came back, then those whose turn it is.

        One that waits for credits holds those behind it; one whose model no ready target serves holds none that came
        back.
        """
        self._pump_scheduled = False
        queue = self.queue
        holds = any(self._submitter.start(live) is Turn.HOLDS for live in list(queue.returned()))
        while not holds and (live := queue.head()) is not None:
            holds = self._submitter.start(live) is not Turn.OVER
        self._room.pumped()

    def _retry(self, link: TargetLink, live: LiveRequest, reason: str) -> None:
        """To the queue's front for another attempt, unless all its tokens are there or attempts are used up."""
        self._speculation.stop(live)
        live.attempt += 1
        live.barren_attempts += reason != NO_CREDIT  # another router was faster: nothing is wrong
        live.avoid = link.address
        if live.emitted and live.emitted[-1] in live.stop_ids:
            live.end(FinishReason.STOP)
        elif len(live.emitted) >= live.max_tokens:
            live.end(FinishReason.LENGTH)
        elif live.barren_attempts >= self._config.max_attempts:
            tried = f"gave up after {live.barren_attempts} attempts without a new token"
            last = f"the last, on {link.address}, ended with: {reason}"
            live.end(UnavailableError(f"{tried}; {last}. Try again, or look into the targets' logs"))
        else:
            self._metrics.replays.labels(reason).inc()
            live.trace.wait(reason)
            self._room.come_back(live)
            self._schedule_pump()
