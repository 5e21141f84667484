"""The gRPC face: translate, enqueue, yield."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import grpc
from google.protobuf.message import DecodeError

from paceline.errors import PacelineError, UnavailableError, WireError
from paceline.peer_stream import first_message, refuse
from paceline.v1 import common_pb2, target_pb2, target_pb2_grpc, verify_pb2
from target_service.codec import Edge, encode_batch, encode_load
from target_service.front import Front
from target_service.round_codec import encode_round
from target_service.router_streams import RouterStream

SERVICE_NAME = target_pb2.DESCRIPTOR.services_by_name["TargetService"].full_name

_log = logging.getLogger(__name__)


class TargetServicer(target_pb2_grpc.TargetServiceServicer):
    """Everything that a stream's end must undo is undone in Serve's finally."""

    def __init__(self, info: common_pb2.ServiceInfo, *, edge: Edge, front: Front) -> None:
        self._info = info
        self._edge = edge
        self._front = front

    def add_to(self, server: grpc.aio.Server) -> None:
        target_pb2_grpc.add_TargetServiceServicer_to_server(self, server)

    async def Serve(
        self, request_iterator: AsyncIterator[target_pb2.ServeRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[target_pb2.ServeResponse]:
        requests = aiter(request_iterator)
        stream: RouterStream | None = None
        reader: asyncio.Task[None] | None = None
        try:
            await _check_hello(requests)
            stream = self._front.streams.open()
            reader = asyncio.create_task(self._read(requests, stream))
            info: common_pb2.ServiceInfo | None = self._info
            async for batch in stream.batches():
                response = encode_batch(batch)
                if info is not None:
                    response.info.CopyFrom(info)
                    info = None
                yield response
        except (PacelineError, DecodeError) as error:
            await refuse(context, error)
        finally:
            if stream is not None:
                self._front.streams.close(stream)
            if reader is not None:
                reader.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await reader

    async def GetInfo(
        self, request: target_pb2.TargetServiceGetInfoRequest, context: grpc.aio.ServicerContext
    ) -> target_pb2.TargetServiceGetInfoResponse:
        response = target_pb2.TargetServiceGetInfoResponse(info=self._info)
        if self._front.load is not None:
            response.load.CopyFrom(encode_load(self._front.load))
        return response

    async def InspectRound(
        self, request: target_pb2.TargetServiceInspectRoundRequest, context: grpc.aio.ServicerContext
    ) -> target_pb2.TargetServiceInspectRoundResponse:
        record = self._front.last_round
        if record is None:
            return target_pb2.TargetServiceInspectRoundResponse(round=verify_pb2.RoundView())
        view = encode_round(record, self._info.incarnation, brief=request.brief)
        return target_pb2.TargetServiceInspectRoundResponse(round=view)

    async def WatchRounds(
        self, request: target_pb2.TargetServiceWatchRoundsRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[target_pb2.TargetServiceWatchRoundsResponse]:
        await context.send_initial_metadata(())  # so that a caller knows from when on it sees every round
        while True:
            record = await self._front.rounds.next()
            view = encode_round(record, self._info.incarnation, brief=request.brief)
            yield target_pb2.TargetServiceWatchRoundsResponse(round=view)

    async def _read(self, requests: AsyncIterator[target_pb2.ServeRequest], stream: RouterStream) -> None:
        try:
            async for message in requests:
                for event in self._edge.decode(message, stream.number):
                    self._front.mailbox.put(event)
            stream.end()
        except (PacelineError, DecodeError) as error:
            stream.end(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the router must not wait for a stream nobody reads
            _log.exception("reading a router's stream failed")
            stream.end(UnavailableError(f"the target cannot read this stream any more: {error}"))


async def _check_hello(requests: AsyncIterator[target_pb2.ServeRequest]) -> None:
    """Raises WireError unless the first message is a hello."""
    first = await first_message(requests)
    if first.WhichOneof("message") != "hello":
        raise WireError("the first message of a stream must carry hello")
