"""A servicer's end of a peer's stream: the first message, and a refusal."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError

from paceline.errors import PacelineError, WireError

HELLO_TIMEOUT_S = 10.0

_log = logging.getLogger(__name__)
_Message = TypeVar("_Message")
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


async def first_message(requests: AsyncIterator[_Message]) -> _Message:
    """Raises WireError where none comes within HELLO_TIMEOUT_S."""
    try:
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            return await anext(requests)
    except TimeoutError as error:
        raise WireError(f"no hello came within {HELLO_TIMEOUT_S:g} s") from error
    except StopAsyncIteration as error:
        raise WireError("the stream ended without a hello") from error


async def refuse(context: _Context, error: PacelineError | DecodeError) -> None:
    """Ends the stream with the error's status, and says so in the log."""
    refusal = error if isinstance(error, PacelineError) else WireError(f"a message does not parse: {error}")
    _log.warning("stream of %s refused: %s", context.peer(), refusal)
    await context.abort(refusal.code, str(refusal))
