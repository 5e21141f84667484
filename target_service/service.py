"""TargetService: model, engine thread and gRPC server of one process, from load to drain."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from prometheus_client import CollectorRegistry

from engine.pages import PageAllocator
from kernels.busy_wait import LOOK, pause
from kernels.ops import WalkLimits
from paceline.address import address_of
from paceline.errors import PacelineError, UnavailableError
from paceline.loopback import WhileConnected, made_if_connected
from paceline.mailbox import Mailbox
from paceline.plumbing import Plumbing
from paceline.threads import busy_wait_s
from paceline.tracing import Tracer
from target_service.codec import Edge
from target_service.config import TargetConfig
from target_service.deadline import TreeDeadline
from target_service.draft_answers import DraftAnswers
from target_service.draft_asker import DraftAsker
from target_service.draft_desk import DraftDesk
from target_service.draft_link import LinkIdentity
from target_service.draft_links import DraftLinks
from target_service.draft_orders import DraftOrders
from target_service.draft_rows import RowSender
from target_service.engine_loop import EngineLoop
from target_service.events import DrainEnded, DrainStarted, Event, Stopped
from target_service.front import Front
from target_service.halves import Halves
from target_service.info_codec import ServiceInfo, add_step_times, overlaps_rounds, service_info
from target_service.link_home import LinkHome
from target_service.loading import LoadedRank, load_rank
from target_service.loop_parts import LoopParts, Outlets
from target_service.metrics import TargetMetrics
from target_service.rehearsal import Rehearsal
from target_service.rehearsal_time import RehearsalTime
from target_service.request_desk import RequestBounds, RequestDesk
from target_service.round_lane import RoundLanes
from target_service.scheduler import Limits
from target_service.servicer import SERVICE_NAME, TargetServicer
from target_service.speculation_stats import AcceptanceWindow
from target_service.step_runner import StepRunner
from target_service.warm_up import warm_up

_STOP_GRACE_S = 2.0  # for streams to take their last batches

_log = logging.getLogger(__name__)

ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True)
class LoadedTarget:
    """A target on its ranks, warmed up; nothing runs yet. rehearsed: the rank for whose steps rounds are rehearsed."""

    config: TargetConfig
    info: ServiceInfo
    parts: LoopParts
    rehearsed: LoadedRank | None = None

    @classmethod
    def load(
        cls, config: TargetConfig, *, init_method: str, registry: CollectorRegistry, tracer: Tracer | None = None
    ) -> LoadedTarget:
        """Takes seconds; to be called before the event loop runs. Raises ModelLoadError or ConfigError."""
        rank = load_rank(config, 0, init_method)
        info = service_info(config, rank)
        parts = make_parts(config, rank, context_length=info.context_length, registry=registry, tracer=tracer)
        add_step_times(info, parts.times)
        has_rounds = rank.model.feature_size > 0 and parts.requests.table.step_trees is not None
        return cls(config, info, parts, rank if has_rounds and parts.runner.is_asynchronous else None)


def make_parts(
    config: TargetConfig,
    rank: LoadedRank,
    *,
    context_length: int,
    registry: CollectorRegistry,
    tracer: Tracer | None = None,
) -> LoopParts:
    """All that the decode loop drives, over a loaded rank 0. Runs the warm-up."""
    runner = StepRunner(rank.model, rank.cache, ops=rank.ops, tp=rank.tp)
    allocator = PageAllocator(rank.cache.num_pages, config.page_size)
    rank.ops.prepare_walk(
        WalkLimits(config.max_rows_per_step, config.max_running_requests, rank.model.config.vocab_size)
    )
    times = warm_up(runner, allocator, max_rows=config.max_rows_per_step)
    window = AcceptanceWindow()
    metrics = TargetMetrics(registry)
    rows = RowSender(runner.features)
    drafts = DraftDesk(metrics=metrics, timeout_s=config.speculative_draft_timeout_s, has_features=rows.has_features)
    bounds = RequestBounds(
        context_length=context_length,
        eos_token_ids=rank.model.config.eos_token_ids,
        max_running_requests=config.max_running_requests,
        limits=Limits(config.max_rows_per_step, config.chunked_prefill_size),
    )
    return LoopParts(
        runner=runner,
        requests=RequestDesk(allocator, bounds, drafts=drafts, metrics=metrics, tracer=tracer or Tracer()),
        drafts=drafts,
        answers=DraftAnswers(drafts, metrics),
        asker=DraftAsker(drafts, rows, context_length=context_length),
        times=times,
        halves=Halves(times, enabled=overlaps_rounds(config, rank)),
        window=window,
        deadline=TreeDeadline(times, window, fixed_ms=config.speculative_tree_deadline_ms),
        metrics=metrics,
        runs_ahead=not config.disable_overlap_schedule,
    )


class TargetService:
    """Serves a loaded target. Made and used on the event loop; ``start``, then ``drain`` and ``close``.

    failed: set with the error that ended the engine thread; ``close`` then ends every stream with it.
    """

    def __init__(self, target: LoadedTarget, plumbing: Plumbing | None = None) -> None:
        """plumbing None: plaintext, and no bytes counted."""
        plumbing = plumbing or Plumbing()
        config, info = target.config, target.info
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._config = config
        self._loop = asyncio.get_running_loop()
        wait_s = busy_wait_s(config.busy_wait_ms, beside_gpu=target.parts.runner.is_asynchronous)
        self._mailbox = Mailbox[Event](wait_s, look=LOOK)
        identity = LinkIdentity(
            incarnation=info.incarnation,
            name=address_of(config.host, config.port),
            feature_id=info.feature_id,
            head_fingerprint=info.head_fingerprint,
            vocab_size=info.vocab_size,
        )
        self._lanes = RoundLanes(self._mailbox.watch)
        self._links = DraftLinks(identity, LinkHome(self._mailbox.put, plumbing, self._lanes))
        self._front = Front(self._mailbox, self._links)
        outlets = Outlets(self._send_orders, self._from_engine(self._front.deliver))
        rehearsed = target.rehearsed if wait_s > 0 else None
        with target.parts.runner.thread():
            self._rehearsal = None if rehearsed is None else made_if_connected(partial(Rehearsal, rehearsed))
        rehearsals = None
        if self._rehearsal is not None:
            rehearsals = RehearsalTime(WhileConnected(self._rehearsal.run), target.parts.times, pause=pause)
        engine = EngineLoop(target.parts, self._mailbox, outlets, rehearsals=rehearsals)
        self._thread = threading.Thread(target=self._run_engine, args=(engine,), name="engine", daemon=True)
        self._rpc = plumbing.server(SERVICE_NAME)
        edge = Edge(info.vocab_size, info.context_length, info.page_size)
        TargetServicer(info, edge=edge, front=self._front).add_to(self._rpc.server)

    async def start(self) -> int:
        """Returns the port, ready. Raises ConfigError where it is taken."""
        port = await self._rpc.start(self._config.host, self._config.port)
        self._links.introduce_as(address_of(self._config.host, port))
        self._thread.start()
        await self._rpc.set_ready(True)
        return port

    async def drain(self) -> None:
        """Not ready; new submissions go back. Running ones get the timeout to finish, then they go back, too."""
        load, timeout_s = self._front.load, self._config.drain_timeout_s
        num_requests = load.running_requests + load.prefilling_requests if load is not None else 0
        _log.info("draining %d requests for up to %g s", num_requests, timeout_s)
        await self._rpc.set_ready(False)
        self._mailbox.put(DrainStarted())
        if not await self._drained_within(timeout_s):
            _log.warning("drain: %g s are over; what still runs goes back to its router", timeout_s)
            self._mailbox.put(DrainEnded())
            await self._drained_within(_STOP_GRACE_S)
        if self._front.drained.is_set():
            _log.info("drained")

    async def close(self) -> None:
        """Ends the streams, the server, the engine thread, and then the links, which its last orders may open."""
        self._front.streams.end_all(self._failure)
        await self._rpc.stop(_STOP_GRACE_S)
        self._mailbox.put(Stopped())
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)
        if self._rehearsal is not None:
            self._rehearsal.close()
        await self._links.close()

    @property
    def _failure(self) -> PacelineError | None:
        error = self.failed.exception() if self.failed.done() else None
        assert error is None or isinstance(error, PacelineError)
        return error

    async def _drained_within(self, timeout_s: float) -> bool:
        drained = asyncio.create_task(self._front.drained.wait())
        await asyncio.wait((drained, self.failed), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        drained.cancel()
        return self._front.drained.is_set() or self.failed.done()

    def _send_orders(self, orders: dict[str, DraftOrders]) -> bool:
        """Engine thread only. Whether the event loop has some of them to send."""
        rest = self._lanes.send(orders)
        if rest:
            self._loop.call_soon_threadsafe(self._front.send_orders, rest)
        return bool(rest)

    def _from_engine(self, take: Callable[[ValueT], None]) -> Callable[[ValueT], None]:
        """take, to be called on the event loop by the engine thread, which does not wait for it."""

        def hand_over(value: ValueT) -> None:
            self._loop.call_soon_threadsafe(take, value)

        return hand_over

    def _run_engine(self, engine: EngineLoop) -> None:
        try:
            engine.run()
        except Exception as error:  # noqa: BLE001 - whatever ends the loop ends the service, with this error
            _log.exception("the engine thread ended")
            self._loop.call_soon_threadsafe(self._fail, error)
        finally:
            self._mailbox.close()

    def _fail(self, error: BaseException) -> None:
        cause = error if isinstance(error, PacelineError) else UnavailableError(f"the engine thread ended: {error}")
        if not self.failed.done():
            self.failed.set_exception(cause)
