"""The writing end of a Serve stream: what an outbox holds, as messages."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TypeAlias

import grpc

from paceline.v1 import target_pb2
from router import serve_codec
from router.outbox import Outbox

ServeOutbox: TypeAlias = Outbox[target_pb2.ServeRequest]
ServeCall: TypeAlias = "grpc.aio.StreamStreamCall[target_pb2.ServeRequest, target_pb2.ServeResponse]"


async def write_all(call: ServeCall, outbox: ServeOutbox) -> None:
    """Until the stream ends, or cancelled. A stream that ended is the reader's to report: it has the reason."""
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        while True:
            await outbox.wait()
            if submissions := outbox.take_submissions():
                await call.write(serve_codec.join_submits(submissions))
            if fields := outbox.take_batch_policy():
                await call.write(serve_codec.encode_batch_policy(fields))
            if decisions := outbox.take_decisions():
                await call.write(serve_codec.encode_update(decisions))
            if cancels := outbox.take_cancels():
                await call.write(serve_codec.encode_cancel(cancels))
