"""Reading a peer's stream: every way that it can end becomes an error with a message."""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeVar

import grpc

from paceline.errors import UnavailableError, WireError

CONNECT_TIMEOUT_S = 5.0  # for a stream's first message and for GetInfo

ReadT = TypeVar("ReadT", covariant=True)


class Readable(Protocol[ReadT]):
    """The part of a gRPC call that gives messages."""

    async def read(self) -> ReadT: ...


async def next_message(call: Readable[ReadT | object], kind: type[ReadT]) -> ReadT:
    """Raises UnavailableError at the stream's end, WireError for bytes that do not parse, AioRpcError for a status.

    gRPC raises CancelledError in a reader whose peer ended the call with CANCELLED; the reader's task is told
    of that as UnavailableError, and of its own cancellation as ever.
    """
    try:
        message = await call.read()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise UnavailableError("the stream was cancelled") from None
    if isinstance(message, kind):
        return message
    if message is grpc.aio.EOF:
        raise UnavailableError("the peer ended the stream")
    raise WireError(f"the peer sent bytes that are no {kind.__name__}; is it a service of another kind or version?")
