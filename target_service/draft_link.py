"""DraftLink: the connection to one draft, its Speculate and Sync streams, kept up until closed."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import Any

import grpc

from paceline.errors import WireError
from paceline.v1 import draft_pb2, draft_pb2_grpc
from target_service.draft_codec import Greeting, RoundReader, decode_greeting, decode_synced
from target_service.draft_orders import DraftOrders, SyncOrder
from target_service.events import LinkDown, LinkEpoch, LinkGone, LinkUp, LossReason
from target_service.lane_keeper import LaneKeeper
from target_service.link_home import LinkHome
from target_service.link_loss import LinkLostError, first_failure, guard, message_of
from target_service.order_codec import encode_orders, encode_sync

HELLO_TIMEOUT_S = 5.0
FIRST_RETRY_S = 0.1
LAST_RETRY_S = 2.0
GIVE_UP_S = 120.0  # without a connection: the draft has moved, or nobody names it any more
MISFIT_RETRY_S = 5.0  # for a draft that answers, but wrongly: a restart may mend it

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LinkIdentity:
    """What this target tells a draft, and what a draft must fit to."""

    incarnation: int
    name: str
    feature_id: str
    head_fingerprint: str
    vocab_size: int


class DraftLink:
    """Event loop only. Connects, and connects again after a loss with growing pauses, until ``close``.

    Each connection has an epoch; LinkUp and LinkDown report it, and orders of another epoch are dropped. A loss
    that repeats with the same reason before a connection worked is reported once. A link that cannot connect for
    GIVE_UP_S ends with LinkGone.
    """

    def __init__(self, address: str, identity: LinkIdentity, home: LinkHome) -> None:
        self.address = address
        self.is_gone = False
        self._clock = asyncio.get_running_loop().time
        self._identity = identity
        self._put = home.put
        self._plumbing = home.plumbing
        self._lane = LaneKeeper(address, identity.incarnation, home)
        self._epoch = 0
        self._connected = False
        self._orders: list[DraftOrders] = []
        self._syncs: deque[SyncOrder] = deque()
        self._has_orders = asyncio.Event()
        self._has_syncs = asyncio.Event()
        self._has_reset: asyncio.Future[str] | None = None
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"draft link {address}")
        self._task.add_done_callback(_report_bug)

    def send(self, orders: DraftOrders) -> None:
        """Never blocks; what the draft has not taken is merged into one message."""
        if not self._connected or orders.epoch != self._epoch:
            return
        if orders.reset and self._has_reset is not None and not self._has_reset.done():
            self._has_reset.set_result(orders.reset)
        self._orders.append(orders)
        self._has_orders.set()
        if orders.syncs:
            self._syncs.extend(orders.syncs)
            self._has_syncs.set()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        retry_s = FIRST_RETRY_S
        reported: LossReason | None = None
        worked_at_s = self._clock()
        while self._clock() - worked_at_s < GIVE_UP_S:
            self._epoch += 1
            try:
                await self._serve_connection()
            except LinkLostError as lost:
                worked, self._connected = self._connected, False
                worked_at_s = self._clock() if worked else worked_at_s
                if worked or lost.reason is not reported:
                    self._put(LinkDown(LinkEpoch(self.address, self._epoch), lost.reason, str(lost)))
                    reported = lost.reason
                misfit = lost.reason in (LossReason.MISMATCH, LossReason.GARBAGE)
                retry_s = MISFIT_RETRY_S if misfit else FIRST_RETRY_S if worked else min(2 * retry_s, LAST_RETRY_S)
            await asyncio.sleep(retry_s)
        self.is_gone = True
        self._put(LinkGone(LinkEpoch(self.address, self._epoch)))

    async def _serve_connection(self) -> None:
        """Raises LinkLostError, always."""
        self._orders.clear()
        self._syncs.clear()
        self._has_reset = asyncio.get_running_loop().create_future()
        hello = draft_pb2.DraftHello(
            incarnation=self._identity.incarnation,
            target=self._identity.name,
            head_fingerprint=self._identity.head_fingerprint,
            feature_id=self._identity.feature_id,
        )
        async with self._plumbing.open_channel(self.address) as channel:
            stub = draft_pb2_grpc.DraftServiceStub(channel)
            rounds = stub.Speculate()
            bulk = stub.Sync()
            greeting = await self._greeted(rounds, bulk, hello)
            at = LinkEpoch(self.address, self._epoch)
            reader = RoundReader(at, greeting.incarnation, self._identity.vocab_size)
            async with self._lane.open(greeting.lane, reader) as lane_works:
                self._connected = True
                self._put(LinkUp(at))
                await first_failure(
                    self._write_rounds(rounds),
                    self._read_rounds(rounds, reader),
                    self._write_bulk(bulk),
                    self._read_bulk(bulk),
                    self._await_reset(),
                    *lane_works,
                )

    async def _greeted(self, rounds: Any, bulk: Any, hello: draft_pb2.DraftHello) -> Greeting:
        """What the draft says first; where certificates do not fit or what answers is no draft, a loss that says so."""
        try:
            return await guard(self._greet(rounds, bulk, hello))
        except LinkLostError as lost:
            error = lost.__cause__
            if not isinstance(error, grpc.aio.AioRpcError):
                raise
            if other := await self._plumbing.other_kind(self.address, error, wanted="draft"):
                raise LinkLostError(LossReason.MISMATCH, other) from error
            raise LinkLostError(lost.reason, await self._plumbing.explain(self.address, error)) from error

    async def _greet(self, rounds: Any, bulk: Any, hello: draft_pb2.DraftHello) -> Greeting:
        # Both at once: on a stream that is over already, a write has no status.
        writes = [
            asyncio.ensure_future(rounds.write(draft_pb2.SpeculateRequest(hello=hello))),
            asyncio.ensure_future(bulk.write(draft_pb2.SyncRequest(hello=hello))),
        ]
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                await asyncio.gather(*writes)
                first: draft_pb2.SpeculateResponse = message_of(await rounds.read())
        except TimeoutError:
            raise LinkLostError(LossReason.HUNG, f"no hello within {HELLO_TIMEOUT_S:g} s") from None
        finally:
            for write in writes:
                write.cancel()
            await asyncio.gather(*writes, return_exceptions=True)
        if not first.HasField("info"):
            raise WireError("the first message carries no info")
        ours, theirs = self._identity, first.info
        for name in ("feature_id", "vocab_size"):
            if getattr(theirs, name) != getattr(ours, name):
                text = f"its {name} is {getattr(theirs, name)!r} and the target's {getattr(ours, name)!r}"
                raise LinkLostError(LossReason.MISMATCH, f"{text}; start both with the same model and head")
        return decode_greeting(first)

    async def _write_rounds(self, rounds: Any) -> None:
        while True:
            await self._has_orders.wait()
            self._has_orders.clear()
            orders, self._orders = self._orders, []
            message = encode_orders(orders, self._identity.incarnation)
            if message is not None:
                await rounds.write(message)

    async def _read_rounds(self, rounds: Any, reader: RoundReader) -> None:
        while True:
            for event in reader.events(message_of(await rounds.read())):
                self._put(event)

    async def _write_bulk(self, bulk: Any) -> None:
        while True:
            await self._has_syncs.wait()
            self._has_syncs.clear()
            while self._syncs:
                await bulk.write(encode_sync(self._syncs.popleft()))

    async def _read_bulk(self, bulk: Any) -> None:
        at = LinkEpoch(self.address, self._epoch)
        while True:
            self._put(decode_synced(message_of(await bulk.read()), at=at))

    async def _await_reset(self) -> None:
        assert self._has_reset is not None
        raise LinkLostError(LossReason.HUNG, await self._has_reset)


def _report_bug(task: asyncio.Task[None]) -> None:
    """A link ends by ``close`` alone."""
    if not task.cancelled() and task.exception() is not None:
        _log.error("%s ended by a bug; its draft is not used any more", task.get_name(), exc_info=task.exception())
