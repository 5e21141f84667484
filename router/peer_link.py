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


class StreamErrors:
    """A context that turns what gRPC raises for a call that is over into UnavailableError.

    It raises CancelledError where the peer ended the call with CANCELLED: the waiting task was not cancelled
    then. Its own cancellation passes.
    """

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, asyncio.CancelledError):
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                raise UnavailableError("the peer cancelled the call") from None
        elif isinstance(error, asyncio.InvalidStateError):
            raise UnavailableError("the call ended before it was used") from None


stream_errors = StreamErrors()


async def next_message(call: Readable[ReadT | object], kind: type[ReadT]) -> ReadT:
    """Raises UnavailableError at the stream's end, WireError for bytes that do not parse, AioRpcError for a status."""
    with stream_errors:
        message = await call.read()
    if isinstance(message, kind):
        return message
    if message is grpc.aio.EOF:
        raise UnavailableError("the peer ended the stream")
    raise WireError(f"the peer sent bytes that are no {kind.__name__}; is it a service of another kind or version?")
