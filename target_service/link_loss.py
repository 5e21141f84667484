"""LinkLostError: the one end of a draft's connection, whatever the peer or the network did."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import grpc

from paceline.errors import PacelineError, UnavailableError, WireError
from target_service.events import LossReason

ResponseT = TypeVar("ResponseT")


class LinkLostError(Exception):
    """The connection is of no more use."""

    def __init__(self, reason: LossReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def message_of(response: Any) -> Any:
    """What a stream's read gave. Raises LinkLostError at its end, WireError for what does not parse."""
    if response is grpc.aio.EOF:
        raise LinkLostError(LossReason.UNREACHABLE, "it ended the stream")
    if response is None:  # what grpc.aio gives for bytes that do not parse
        raise WireError("a message does not parse")
    return response


async def guard(work: Coroutine[Any, Any, ResponseT]) -> ResponseT:
    """The work's result; whatever a peer can cause becomes a LinkLostError."""
    try:
        return await work
    except grpc.aio.AioRpcError as error:
        misfit = error.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNIMPLEMENTED)
        reason = LossReason.MISMATCH if misfit else LossReason.UNREACHABLE
        raise LinkLostError(reason, f"{error.code().name}: {error.details()}") from error
    except asyncio.InvalidStateError as error:  # a write on a stream that the peer has ended
        raise LinkLostError(LossReason.UNREACHABLE, f"the stream is over: {error}") from error
    except UnavailableError as error:  # of a lane
        raise LinkLostError(LossReason.UNREACHABLE, str(error)) from error
    except PacelineError as error:
        raise LinkLostError(LossReason.GARBAGE, str(error)) from error


async def first_failure(*works: Coroutine[Any, Any, None]) -> None:
    """Runs the works until one fails, and raises what it failed with."""
    tasks = [asyncio.ensure_future(guard(work)) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
