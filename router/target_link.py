"""The Serve stream to one target: reconnects, says what goes up, and works in what comes down."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
from collections.abc import Iterator

import grpc

from paceline.codec import decode_stats
from paceline.errors import MismatchError, PacelineError, UnavailableError
from paceline.plumbing import Plumbing
from paceline.types import SpeculationDecision
from paceline.v1 import common_pb2, target_pb2, target_pb2_grpc
from router import serve_codec
from router.backoff import Backoff
from router.credits import CreditLedger
from router.flights import Flights
from router.link_listener import TargetListener
from router.link_progress import LinkProgress
from router.link_writer import ServeCall, ServeOutbox, write_all
from router.live_request import Flight, LiveRequest
from router.peer import PeerInfo, TargetLoad
from router.peer_link import CONNECT_TIMEOUT_S, next_message, stream_errors
from router.readiness import Readiness

_log = logging.getLogger(__name__)


class TargetLink:
    """One target. Each stream starts from nothing."""

    def __init__(
        self,
        address: str,
        listener: TargetListener,
        *,
        hello: target_pb2.ServeRequest,
        timeout_s: float,
        plumbing: Plumbing,
    ) -> None:
        self.address = address
        self.info: PeerInfo | None = None  # of the stream that stands, else None
        self.info_message = common_pb2.ServiceInfo()  # the last one heard
        self.load = TargetLoad()
        self.ledger = CreditLedger()
        self.message = "not connected yet"  # why it is not ready
        self.contacted = asyncio.Event()  # once the first attempt to reach it has succeeded or failed
        self.over = asyncio.Event()  # retired, and its last request has left
        self.readiness = Readiness(asyncio.get_running_loop().time)
        self._listener = listener
        self._hello = hello
        self._timeout_s = timeout_s
        self._plumbing = plumbing
        self._flights = Flights(on_empty=self._check_over)
        self._progress = LinkProgress(self, self._flights, listener)
        self._outbox = ServeOutbox()
        self._heard_at = 0.0
        self._hung = False
        self._retired = False

    @property
    def ready(self) -> bool:
        return self.info is not None and not self.load.draining and not self._retired

    @property
    def why_not_ready(self) -> str:
        """ "" where it is."""
        return self.message or ("draining" if self.load.draining else "leaving" if self._retired else "")

    @property
    def num_flights(self) -> int:
        return len(self._flights)

    def flights(self) -> Iterator[LiveRequest]:
        """The requests on this target, oldest first."""
        return iter(self._flights)

    def submit(self, live: LiveRequest, decision: SpeculationDecision, *, max_tokens: int, pages: int) -> None:
        """Starts an attempt. The stream must stand and its credits must cover the pages."""
        self.ledger.spend(pages)
        if not self._flights:
            self._heard_at = asyncio.get_running_loop().time()
        number = self._flights.add(self, live, decision)
        self._outbox.submit(serve_codec.encode_submit(live, number=number, max_tokens=max_tokens))

    def update(self, live: LiveRequest, decision: SpeculationDecision) -> None:
        """Sends a new decision for a request on this link."""
        assert live.flight is not None
        live.flight = Flight(self, live.flight.number, decision)
        self._outbox.update(live.flight.number, decision)

    def set_batch_policy(self, **fields: int) -> None:
        """Sends fields of a BatchPolicy; those not named stay as they are. They end with the stream."""
        self._outbox.set_batch_policy(fields)

    def cancel(self, live: LiveRequest) -> None:
        """Forgets the request and tells the target to."""
        self._outbox.cancel(self._flights.remove(live))

    def retire(self) -> None:
        """No longer named by --targets: takes no more requests, and is over with the last that it has."""
        self._retired = True
        self.readiness.note(self.ready)
        self._check_over()

    def reinstate(self) -> None:
        """Named again."""
        self._retired = False
        self.readiness.note(self.ready)
        self.over.clear()

    async def run(self) -> None:
        """Keeps the link up until cancelled."""
        backoff = Backoff(random.Random())
        while True:
            try:
                async with self._plumbing.open_channel(self.address) as channel:
                    stub: target_pb2_grpc.TargetServiceAsyncStub = target_pb2_grpc.TargetServiceStub(channel)
                    await self._serve(stub.Serve())
            except grpc.aio.AioRpcError as error:
                message = await self._plumbing.explain(self.address, error, wanted="target")
            except PacelineError as error:
                message = str(error)
            finally:
                stood = self.info is not None
                self.info = None
                self.readiness.note(False)
            if stood:
                backoff.reset()
            if stood or message != self.message:
                _log.warning("target %s is not reachable: %s", self.address, message)
            self.message = message
            self.contacted.set()
            self._listener.on_lost(self, self._flights.clear())
            await asyncio.sleep(backoff.next_s())

    async def _serve(self, call: ServeCall) -> None:
        """One stream from hello to its end, which is always an error."""
        try:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    with stream_errors:
                        await call.write(self._hello)
                    first = await next_message(call, target_pb2.ServeResponse)
            except TimeoutError as error:
                raise UnavailableError(f"no first message within {CONNECT_TIMEOUT_S:g} s") from error
            self._open(first)
            writer = asyncio.create_task(write_all(call, self._outbox))
            watchdog = asyncio.create_task(self._watch(call))
            try:
                await self._read(call, first)
            finally:
                for task in (writer, watchdog):
                    task.cancel()
                await asyncio.gather(writer, watchdog, return_exceptions=True)
        finally:
            call.cancel()

    def _open(self, first: target_pb2.ServeResponse) -> None:
        info = serve_codec.decode_info(first.info)
        if info.service != "target":
            raise MismatchError(f"is a {info.service or 'service without a name'}, not a target; fix --targets")
        self._listener.check_info(info)
        self.info_message = first.info
        self.load = TargetLoad()
        self.ledger = CreditLedger()
        self._outbox = ServeOutbox()
        self._hung = False
        self._heard_at = asyncio.get_running_loop().time()
        self.info = info
        self.message = ""
        self.readiness.note(self.ready)
        _log.info("target %s is up, incarnation %x", self.address, info.incarnation)

    async def _read(self, call: ServeCall, first: target_pb2.ServeResponse) -> None:
        self._listener.on_ready(self)
        self._take_state(first, new_tokens=self._progress.take(first))
        self.contacted.set()
        clock = asyncio.get_running_loop().time
        while True:
            try:
                message = await next_message(call, target_pb2.ServeResponse)
            except UnavailableError as error:
                if self._hung:
                    raise UnavailableError(f"no word for {self._timeout_s:g} s while it had requests") from error
                raise
            self._heard_at = clock()
            new_tokens = self._progress.take(message)
            await asyncio.sleep(0)  # tokens leave to their clients before the rest is looked at
            self._take_state(message, new_tokens=new_tokens)

    def _take_state(self, message: target_pb2.ServeResponse, *, new_tokens: int) -> None:
        """What the router needs to know."""
        was_draining = self.load.draining
        opened = message.HasField("credits")
        if opened:
            self.ledger.grant(slots=message.credits.slots, pages=message.credits.pages)
        if message.HasField("load"):
            self.load = serve_codec.decode_target_load(message.load)
            opened = opened or (was_draining and not self.load.draining)
            self.readiness.note(self.ready)
        for returned in message.returns:
            live = self._flights.get(returned.request)
            if live is not None:
                self._take_back(live, returned, granted=message.HasField("credits"))
        self._listener.on_step(self, new_tokens=new_tokens, opened=opened)

    def _take_back(self, live: LiveRequest, returned: target_pb2.Return, *, granted: bool) -> None:
        """Until the target says otherwise, it takes no more where it drains or has not granted anew."""
        self._flights.remove(live, stats=decode_stats(returned.stats) if returned.HasField("stats") else None)
        if returned.reason == target_pb2.RETURN_REASON_DRAINING:
            self.load = dataclasses.replace(self.load, draining=True)
            self.readiness.note(self.ready)
        elif returned.reason == target_pb2.RETURN_REASON_NO_CREDIT and not granted:
            self.ledger.grant(slots=0, pages=0)
        self._listener.on_return(self, live, serve_codec.return_reason(returned.reason))

    async def _watch(self, call: ServeCall) -> None:
        """Ends a stream on which requests wait and nothing comes. Pings see a dead host, not a hung process."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(self._timeout_s / 4)
            if self._flights and clock() - self._heard_at > self._timeout_s:
                self._hung = True
                call.cancel()
                return

    def _check_over(self) -> None:
        if self._retired and not self._flights:
            self.over.set()
