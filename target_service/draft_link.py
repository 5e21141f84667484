"""DraftLink: the connection to one draft, its Speculate and Sync streams, kept up until closed."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from paceline.errors import PacelineError, WireError
from paceline.plumbing import Plumbing
from paceline.v1 import common_pb2, draft_pb2, draft_pb2_grpc
from target_service.draft_codec import decode_status, decode_synced, decode_trees, encode_orders, encode_sync
from target_service.draft_orders import DraftOrders, SyncOrder
from target_service.events import Event, LinkDown, LinkEpoch, LinkGone, LinkUp, LossReason

HELLO_TIMEOUT_S = 5.0
FIRST_RETRY_S = 0.1
LAST_RETRY_S = 2.0
GIVE_UP_S = 120.0  # without a connection: the draft has moved, or nobody names it any more
MISFIT_RETRY_S = 5.0  # for a draft that answers, but wrongly: a restart may mend it

_log = logging.getLogger(__name__)

ResponseT = TypeVar("ResponseT")


@dataclass(frozen=True, slots=True)
class LinkIdentity:
    """What this target tells a draft, and what a draft must fit to."""

    incarnation: int
    name: str
    feature_id: str
    head_fingerprint: str
    vocab_size: int


class LinkLostError(Exception):
    """The connection is of no more use."""

    def __init__(self, reason: LossReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class DraftLink:
    """Event loop only. Connects, and connects again after a loss with growing pauses, until ``close``.

    Each connection has an epoch; LinkUp and LinkDown report it, and orders of another epoch are dropped. A loss
    that repeats with the same reason before a connection worked is reported once. A link that cannot connect for
    GIVE_UP_S ends with LinkGone.
    """

    def __init__(self, address: str, identity: LinkIdentity, put: Callable[[Event], None], plumbing: Plumbing) -> None:
        self.address = address
        self.is_gone = False
        self._clock = asyncio.get_running_loop().time
        self._identity = identity
        self._put = put
        self._plumbing = plumbing
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
            info = await self._greeted(rounds, bulk, hello)
            self._connected = True
            self._put(LinkUp(LinkEpoch(self.address, self._epoch)))
            await _first_failure(
                self._write_rounds(rounds),
                self._read_rounds(rounds, info),
                self._write_bulk(bulk),
                self._read_bulk(bulk),
                self._await_reset(),
            )

    async def _greeted(self, rounds: Any, bulk: Any, hello: draft_pb2.DraftHello) -> common_pb2.ServiceInfo:
        """What the draft says of itself; where certificates do not fit, a loss that says so."""
        try:
            return await _guard(self._greet(rounds, bulk, hello))
        except LinkLostError as lost:
            if isinstance(lost.__cause__, grpc.aio.AioRpcError) and lost.reason is LossReason.UNREACHABLE:
                why = await self._plumbing.explain(self.address, lost.__cause__)
                raise LinkLostError(lost.reason, why) from lost.__cause__
            raise

    async def _greet(self, rounds: Any, bulk: Any, hello: draft_pb2.DraftHello) -> common_pb2.ServiceInfo:
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                await rounds.write(draft_pb2.SpeculateRequest(hello=hello))
                await bulk.write(draft_pb2.SyncRequest(hello=hello))
                first = _message(await rounds.read())
        except TimeoutError:
            raise LinkLostError(LossReason.HUNG, f"no hello within {HELLO_TIMEOUT_S:g} s") from None
        if not first.HasField("info"):
            raise WireError("the first message carries no info")
        ours, theirs = self._identity, first.info
        for name in ("feature_id", "vocab_size"):
            if getattr(theirs, name) != getattr(ours, name):
                text = f"its {name} is {getattr(theirs, name)!r} and the target's {getattr(ours, name)!r}"
                raise LinkLostError(LossReason.MISMATCH, f"{text}; start both with the same model and head")
        info: common_pb2.ServiceInfo = theirs
        return info

    async def _write_rounds(self, rounds: Any) -> None:
        while True:
            await self._has_orders.wait()
            self._has_orders.clear()
            orders, self._orders = self._orders, []
            message = encode_orders(orders, self._identity.incarnation)
            if message is not None:
                await rounds.write(message)

    async def _read_rounds(self, rounds: Any, info: common_pb2.ServiceInfo) -> None:
        """A tree of another process of the draft's is dropped."""
        at = LinkEpoch(self.address, self._epoch)
        while True:
            message = _message(await rounds.read())
            if message.HasField("verify") and message.verify.incarnation == info.incarnation:
                self._put(decode_trees(message.verify, self._identity.vocab_size, at=at))
            if message.HasField("status"):
                self._put(decode_status(message.status, at=at))

    async def _write_bulk(self, bulk: Any) -> None:
        while True:
            await self._has_syncs.wait()
            self._has_syncs.clear()
            while self._syncs:
                await bulk.write(encode_sync(self._syncs.popleft()))

    async def _read_bulk(self, bulk: Any) -> None:
        at = LinkEpoch(self.address, self._epoch)
        while True:
            self._put(decode_synced(_message(await bulk.read()), at=at))

    async def _await_reset(self) -> None:
        assert self._has_reset is not None
        raise LinkLostError(LossReason.HUNG, await self._has_reset)


def _report_bug(task: asyncio.Task[None]) -> None:
    """A link ends by ``close`` alone."""
    if not task.cancelled() and task.exception() is not None:
        _log.error("%s ended by a bug; its draft is not used any more", task.get_name(), exc_info=task.exception())


def _message(response: Any) -> Any:
    if response is grpc.aio.EOF:
        raise LinkLostError(LossReason.UNREACHABLE, "it ended the stream")
    if response is None:  # what grpc.aio gives for bytes that do not parse
        raise WireError("a message does not parse")
    return response


async def _guard(work: Coroutine[Any, Any, ResponseT]) -> ResponseT:
    """The work's result; whatever a peer can cause becomes a LinkLostError."""
    try:
        return await work
    except grpc.aio.AioRpcError as error:
        misfit = error.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNIMPLEMENTED)
        reason = LossReason.MISMATCH if misfit else LossReason.UNREACHABLE
        raise LinkLostError(reason, f"{error.code().name}: {error.details()}") from error
    except asyncio.InvalidStateError as error:  # a write on a stream that the peer has ended
        raise LinkLostError(LossReason.UNREACHABLE, f"the stream is over: {error}") from error
    except PacelineError as error:
        raise LinkLostError(LossReason.GARBAGE, str(error)) from error


async def _first_failure(*works: Coroutine[Any, Any, None]) -> None:
    """Runs the works until one fails, and raises what it failed with."""
    tasks = [asyncio.ensure_future(_guard(work)) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
