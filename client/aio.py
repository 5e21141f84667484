"""The asyncio client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from types import TracebackType

import grpc

from client.channels import Asking, Channels, Opened
from client.completion import Assembly, Completion, Delta
from client.credentials import Credentials
from client.errors import RequestCancelledError, typed_errors_aio
from client.fit import is_duration, require_fit
from client.request import GenerateOptions, Prompt, Sampling, build_request
from paceline.errors import InvalidInputError
from paceline.rpc import open_channel
from paceline.v1 import router_pb2

_NO_CREDENTIALS = Credentials()


class AsyncPacelineClient:
    """Talks to one router from a running event loop; use it as an async context manager, or close it.

    request_timeout_s bounds each request as a whole; None sets no bound. Raises InvalidInputError for an address that
    is none and where no event loop runs, ConfigError for certificates that cannot be used.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:7100",
        *,
        request_timeout_s: float | None = None,
        credentials: Credentials = _NO_CREDENTIALS,
    ) -> None:
        _require_loop()
        self.address = address
        self._asking = Asking.by(credentials, address, request_timeout_s)
        self._channels = Channels(self._asking, open_channel)

    def generate(
        self, prompt: Prompt, *, sampling: Sampling | None = None, options: GenerateOptions | None = None
    ) -> AsyncGeneration:
        """Sends a request and returns at once. Raises InvalidInputError naming a field that does not fit, or after
        ``close``."""
        request = build_request(prompt, sampling, options)
        return AsyncGeneration(request, self._channels.take(), self._asking)

    async def info(self, *, timeout_s: float = 5.0) -> router_pb2.RouterServiceGetInfoResponse:
        """The router, its fleet and its limits. Raises a PacelineError."""
        require_fit(is_duration(timeout_s), "timeout_s", timeout_s, "seconds, above 0")
        opened = self._channels.take()
        async with typed_errors_aio(self.address, self._asking.tls):
            return await opened.stub.GetInfo(
                router_pb2.RouterServiceGetInfoRequest(), timeout=timeout_s, metadata=self._asking.metadata
            )

    async def close(self) -> None:
        """Cancels what still runs and closes the connection."""
        for channel in self._channels.end():
            await channel.close()

    async def __aenter__(self) -> AsyncPacelineClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncGeneration:
    """A running request: iterate it for deltas, await result() for the whole, leave its context to cancel the rest.

    Iterating raises a PacelineError where the request fails. A task that is cancelled while it iterates cancels
    the request.
    """

    def __init__(self, request: router_pb2.GenerateRequest, opened: Opened[grpc.aio.Channel], asking: Asking) -> None:
        self._assembly = Assembly(time.monotonic, time.monotonic())
        self._call: grpc.aio.UnaryStreamCall[router_pb2.GenerateRequest, router_pb2.GenerateResponse] = (
            opened.stub.Generate(request, timeout=asking.timeout_s, metadata=asking.metadata)
        )
        self._opened = opened
        self._asking = asking

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        try:
            async with typed_errors_aio(self._asking.address, self._asking.tls):
                message = await self._call.read()
        except asyncio.CancelledError:
            # gRPC raises it for a call that was cancelled, too: by cancel(), or because the client was closed.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise RequestCancelledError("the request was cancelled") from None
        if not isinstance(message, router_pb2.GenerateResponse):  # grpc.aio.EOF
            raise StopAsyncIteration
        return self._assembly.add(message)

    async def result(self) -> Completion:
        """Waits for the end; deltas not yet taken are read and joined. Raises a PacelineError."""
        async for _ in self:
            pass
        return self._assembly.completion()

    def cancel(self) -> None:
        """Aborts the request on the services; no effect once it has ended."""
        self._call.cancel()

    async def __aenter__(self) -> AsyncGeneration:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()


def _require_loop() -> None:
    """gRPC would take another loop than the one that asyncio.run makes later, and its calls would fail on that."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise InvalidInputError(
            "an AsyncPacelineClient is made where no event loop runs; make it in a coroutine, or use PacelineClient"
        ) from None
