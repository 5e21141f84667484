"""DraftService: model, engine thread and gRPC server of one process, from load to drain."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

import torch
from prometheus_client import CollectorRegistry

from draft_service.capacity import choose_pages, memory_needs
from draft_service.codec import Edge
from draft_service.config import DraftConfig
from draft_service.draft_engine import DraftEngine
from draft_service.drafting import choose_limits, load_drafter
from draft_service.engine_loop import EngineLoop, Outlets
from draft_service.events import Drain, Event
from draft_service.front import Front
from draft_service.info import DraftInfo, describe_draft
from draft_service.load import LoadBoard
from draft_service.metrics import DraftMetrics
from draft_service.propose_times import measure_proposals
from draft_service.rehearsal import Rehearsal
from draft_service.reply_sender import ReplySender
from draft_service.round_board import RoundBoard
from draft_service.round_lane import LaneTerms, RoundLanes
from draft_service.servicer import SERVICE_NAME, DraftServicer
from draft_service.sessions import SessionTable
from draft_service.streams import StreamHub
from engine.config import load_model_config
from engine.device import choose_device
from engine.device_drafter import DeviceDrafter
from engine.head_model import HeadModel
from engine.head_weights import check_head
from engine.memory import refusing_exhaustion
from engine.pages import PageAllocator
from engine.wire import dtype_named
from kernels.busy_wait import LOOK
from paceline.errors import UnavailableError
from paceline.loopback import WhileConnected, made_if_connected
from paceline.mailbox import Mailbox
from paceline.plumbing import Plumbing
from paceline.threads import busy_wait_s
from paceline.tracing import Tracer

_DRAIN_LOOK_S = 0.02  # between looks at the sessions that are left
_STOP_GRACE_S = 1.0  # for streams to take their last answers
_WAITING_REPLIES = 4096  # answers of one stream that wait beyond two a session

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedDraft:
    """A head on its device, warmed up, with its pool and empty session table."""

    config: DraftConfig
    engine: DraftEngine
    info: DraftInfo
    device: torch.device
    rehearsal: Rehearsal | None = None

    @classmethod
    def load(cls, config: DraftConfig, *, tracer: Tracer | None = None) -> Self:
        """Takes seconds; to be called before the event loop runs. Raises ModelLoadError or ConfigError."""
        model_path, head_path = Path(config.model_path), Path(config.speculative_draft_model_path)
        target = load_model_config(model_path)
        check_head(head_path, target)
        context_length = target.context_length(config.context_length)
        device, ops = choose_device(
            config.device, config.kernel_backend, dtype=config.dtype, num_threads=config.num_threads
        )
        limits = choose_limits(config, device)
        with refusing_exhaustion(device):
            model = HeadModel.load(head_path, model_path, dtype=dtype_named(config.dtype), ops=ops, device=device)
            num_pages = choose_pages(config, memory_needs(limits, model), device=device, context_length=context_length)
            allocator = PageAllocator(num_pages, config.page_size)
            drafter = load_drafter(config, model, allocator, limits=limits)
            times = measure_proposals(drafter, allocator, config, feature_size=model.config.hidden_size)
        table = SessionTable(
            allocator, max_sessions=config.max_running_requests, context_length=context_length, tracer=tracer
        )
        engine = DraftEngine(drafter, table, limits=limits, clock=time.perf_counter)
        info = describe_draft(config, model, target, num_pages=num_pages, context_length=context_length)
        rehearsal = None
        if config.has_lanes and isinstance(drafter, DeviceDrafter) and drafter.captured_shapes:
            edge = Edge(info.vocab_size, info.feature_size, info.feature_id, info.head_fingerprint)
            rehearsal = made_if_connected(
                partial(Rehearsal, drafter, edge=edge, dtype=config.dtype, page_size=config.page_size)
            )
        return cls(config, engine, replace(info, propose_times=times), device, rehearsal)


class DraftService:
    """Serves a loaded draft. Made and used on the event loop; ``start``, then ``drain`` and ``close``.

    failed: set with the error that ended the engine thread, after which every stream ends with UNAVAILABLE.
    """

    def __init__(self, draft: LoadedDraft, *, registry: CollectorRegistry, plumbing: Plumbing | None = None) -> None:
        """plumbing: of the draft's flags; None: plaintext, and no bytes counted."""
        loop = asyncio.get_running_loop()
        engine = draft.engine
        self.info = draft.info
        self.failed: asyncio.Future[None] = loop.create_future()
        self._config = draft.config
        max_replies = 2 * draft.config.max_running_requests + _WAITING_REPLIES
        self._front = Front(
            hub=StreamHub(max_replies),
            load=LoadBoard(engine.load(), clock=time.perf_counter),
            rounds=RoundBoard(),
            metrics=DraftMetrics(registry),
        )
        plumbing = plumbing or Plumbing()
        is_gpu = draft.device.type == "cuda"
        wait_s = busy_wait_s(draft.config.busy_wait_ms, beside_gpu=is_gpu)
        self._rehearsal = draft.rehearsal
        rehearse = None if draft.rehearsal is None else WhileConnected(draft.rehearsal.run)
        mailbox = Mailbox[Event | None](wait_s, rehearse, look=LOOK)
        self._lanes = RoundLanes(LaneTerms(self.info.incarnation, max_replies, plumbing.lane_bytes, mailbox.watch))
        call = loop.call_soon_threadsafe
        sender = ReplySender(self._lanes, front=self._front, call=call)
        outlets = Outlets(answer=sender.answer, note=sender.note, failed=lambda error: call(self._fail, error))
        self._loop = EngineLoop(engine, mailbox, outlets, device=draft.device)
        self._rpc = plumbing.server(SERVICE_NAME)
        servicer = DraftServicer(
            self.info, front=self._front, lanes=self._lanes, post=mailbox.put, clock=time.perf_counter
        )
        servicer.add_to(self._rpc.server)

    async def start(self) -> int:
        """Returns the port, ready. Raises ConfigError where it is taken."""
        if self._config.has_lanes:
            round_port = self._lanes.open_door(self._config.host, self._config.round_port)
            _log.info("port %d takes targets' rounds", round_port)
        self._loop.start()
        port = await self._rpc.start(self._config.host, self._config.port)
        await self._rpc.set_ready(True)
        return port

    async def drain(self) -> None:
        """Not ready and no new sessions from now on; returns once the open ones are released, or after the timeout."""
        load, timeout_s = self._front.load, self._config.drain_timeout_s
        _log.info("draining %d sessions for up to %g s", load.read().num_sessions, timeout_s)
        await self._rpc.set_ready(False)
        self._loop.post(Drain())
        drained = asyncio.create_task(self._drained())
        await asyncio.wait((drained, self.failed), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if drained.done():
            _log.info("drained")
        else:
            drained.cancel()
            _log.warning("drain: %d sessions were still open", load.read().num_sessions)

    async def close(self) -> None:
        """Ends the streams, the server and the engine thread."""
        self._front.hub.end_streams()
        await self._rpc.stop(_STOP_GRACE_S)
        await self._lanes.close()
        await asyncio.to_thread(self._loop.close)
        if self._rehearsal is not None:
            self._rehearsal.close()

    async def _drained(self) -> None:
        async for figures in self._front.load.watch(_DRAIN_LOOK_S):
            if figures.draining and figures.num_sessions == 0:
                return

    def _fail(self, error: BaseException) -> None:
        self._front.hub.fail(f"the draft's engine thread ended: {error}; ask the router for another draft")
        if not self.failed.done():
            self.failed.set_exception(UnavailableError(f"the engine thread ended: {error}"))
