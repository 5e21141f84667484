"""The gRPC face: translate, enqueue, yield."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

import grpc
from google.protobuf.message import DecodeError

from draft_service.codec import (
    Edge,
    RoundDecoder,
    encode_info,
    encode_load,
    encode_offer,
    encode_replies,
    encode_sync_reply,
)
from draft_service.events import Event, StreamEnd
from draft_service.frame_codec import RoundFrame
from draft_service.front import Front
from draft_service.info import DraftInfo
from draft_service.replies import SyncReply
from draft_service.round_board import TimedRecord
from draft_service.round_codec import encode_round
from draft_service.round_lane import RoundLanes, RoundStream
from paceline.errors import PacelineError, WireError
from paceline.peer_stream import first_message, refuse
from paceline.v1 import draft_pb2, draft_pb2_grpc, verify_pb2

SERVICE_NAME = draft_pb2.DESCRIPTOR.services_by_name["DraftService"].full_name

_log = logging.getLogger(__name__)
_SYNC_WINDOW = 16  # messages of one stream that wait for the head at a time; the rest waits in the transport
_DEFAULT_LOAD_INTERVAL_MS = 100
_MIN_LOAD_INTERVAL_MS = 10

_SyncWindow = asyncio.Queue["asyncio.Future[SyncReply] | None"]


class DraftServicer(draft_pb2_grpc.DraftServiceServicer):
    """``post`` hands an event to the engine thread; ``clock`` is the engine's."""

    def __init__(
        self,
        info: DraftInfo,
        *,
        front: Front,
        lanes: RoundLanes,
        post: Callable[[Event], None],
        clock: Callable[[], float],
    ) -> None:
        self._info = info
        self._info_message = encode_info(info)
        self._edge = Edge(info.vocab_size, info.feature_size, info.feature_id, info.head_fingerprint)
        self._front = front
        self._lanes = lanes
        self._post = post
        self._clock = clock

    def add_to(self, server: grpc.aio.Server) -> None:
        draft_pb2_grpc.add_DraftServiceServicer_to_server(self, server)

    async def Speculate(
        self, request_iterator: AsyncIterator[draft_pb2.SpeculateRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[draft_pb2.SpeculateResponse]:
        requests = aiter(request_iterator)
        number, outbox = self._front.hub.open_stream()
        reader = None
        try:
            first = await first_message(requests)
            target = self._edge.check_hello(first)
            _log.info("target %s (incarnation %d) opened stream %d", first.hello.target, target, number)
            stream = RoundStream(RoundDecoder(self._edge, number, target, self._clock), self._post, outbox)
            with self._lanes.offered(stream) as offer:
                opened = RoundFrame(first, None)
                self._post(self._edge.decode_rounds(opened, stream=number, target=target, now_s=self._clock()))
                yield draft_pb2.SpeculateResponse(info=self._info_message, lane=encode_offer(offer))
                reader = asyncio.create_task(_read_rounds(requests, stream))
                while (replies := await outbox.take()) is not None:
                    yield encode_replies(replies, self._info.incarnation)
        except (PacelineError, DecodeError) as error:
            await refuse(context, error)
        finally:
            self._front.hub.close_stream(number)
            self._post(StreamEnd(number))
            _log.info("stream %d ended", number)
            await _cancel(reader)

    async def Sync(
        self, request_iterator: AsyncIterator[draft_pb2.SyncRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[draft_pb2.SyncResponse]:
        requests = aiter(request_iterator)
        window: _SyncWindow = asyncio.Queue(_SYNC_WINDOW)
        reader = None
        try:
            first = await first_message(requests)
            target = self._edge.check_hello(first)
            if first.verified_id:
                raise WireError("the first message of a sync stream carries hello and no rows")
            reader = asyncio.create_task(self._read_sync(requests, target, window))
            while (reply := await window.get()) is not None:
                yield encode_sync_reply(await reply)
        except (PacelineError, DecodeError) as error:
            await refuse(context, error)
        finally:
            await _cancel(reader)

    async def WatchLoad(
        self, request: draft_pb2.WatchLoadRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[draft_pb2.WatchLoadResponse]:
        interval_ms = max(request.min_interval_ms or _DEFAULT_LOAD_INTERVAL_MS, _MIN_LOAD_INTERVAL_MS)
        async for figures in self._front.load.watch(interval_ms / 1e3):
            yield encode_load(figures, self._info)

    async def GetInfo(
        self, request: draft_pb2.DraftServiceGetInfoRequest, context: grpc.aio.ServicerContext
    ) -> draft_pb2.DraftServiceGetInfoResponse:
        return draft_pb2.DraftServiceGetInfoResponse(info=self._info_message)

    async def InspectRound(
        self, request: draft_pb2.DraftServiceInspectRoundRequest, context: grpc.aio.ServicerContext
    ) -> draft_pb2.DraftServiceInspectRoundResponse:
        return draft_pb2.DraftServiceInspectRoundResponse(
            round=self._view(self._front.rounds.latest, brief=request.brief)
        )

    async def WatchRounds(
        self, request: draft_pb2.DraftServiceWatchRoundsRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[draft_pb2.DraftServiceWatchRoundsResponse]:
        seen = self._front.rounds.latest
        await context.send_initial_metadata(())  # so that a caller knows from when on it sees the rounds
        while True:
            seen = await self._front.rounds.wait(seen)
            yield draft_pb2.DraftServiceWatchRoundsResponse(round=self._view(seen, brief=request.brief))

    def _view(self, latest: TimedRecord | None, *, brief: bool) -> verify_pb2.RoundView:
        info = self._info
        return encode_round(latest, incarnation=info.incarnation, page_size=info.page_size, brief=brief)

    async def _read_sync(
        self, requests: AsyncIterator[draft_pb2.SyncRequest], target: int, window: _SyncWindow
    ) -> None:
        try:
            async for message in requests:
                if message.HasField("hello"):
                    raise WireError("hello came again; open another stream for another target")
                ticket, reply = self._front.hub.new_ticket()
                try:
                    self._post(self._edge.decode_sync(message, target=target, ticket=ticket))
                except PacelineError:
                    reply.cancel()  # no answer will come, and the hub keeps a ticket until its answer
                    raise
                await window.put(reply)
            await window.put(None)
        except Exception as error:  # noqa: BLE001 - the stream's writing half raises it
            failed: asyncio.Future[SyncReply] = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            await window.put(failed)


async def _read_rounds(requests: AsyncIterator[draft_pb2.SpeculateRequest], stream: RoundStream) -> None:
    try:
        async for message in requests:
            stream.post(stream.decoder.decode(message))
        stream.outbox.end()
    except Exception as error:  # noqa: BLE001 - the stream's writing half raises it
        stream.outbox.fail(error)


async def _cancel(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
