"""The asyncio client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from types import TracebackType

import grpc

from client.completion import Assembly, Completion, Delta
from client.errors import RequestCancelledError, typed_errors
from client.request import GenerateOptions, Prompt, Sampling, build_request
from paceline.rpc import open_channel
from paceline.v1 import router_pb2, router_pb2_grpc


class AsyncPacelineClient:
    """Talks to one router from a running event loop; use it as an async context manager, or close it.

    request_timeout_s bounds each request as a whole; None sets no bound.
    """

    def __init__(self, address: str = "127.0.0.1:7100", *, request_timeout_s: float | None = None) -> None:
        self.address = address
        self._request_timeout_s = request_timeout_s
        self._channel = open_channel(address)
        self._stub = router_pb2_grpc.RouterServiceStub(self._channel)

    def generate(
        self, prompt: Prompt, *, sampling: Sampling | None = None, options: GenerateOptions | None = None
    ) -> AsyncGeneration:
        """Sends a request and returns at once. Raises InvalidInputError for a value that cannot be sent."""
        request = build_request(prompt, sampling or Sampling(), options or GenerateOptions())
        started_s = time.monotonic()
        return AsyncGeneration(self._stub.Generate(request, timeout=self._request_timeout_s), self.address, started_s)

    async def info(self, *, timeout_s: float = 5.0) -> router_pb2.RouterServiceGetInfoResponse:
        """The router, its fleet and its limits. Raises a PacelineError."""
        with typed_errors(self.address):
            return await self._stub.GetInfo(router_pb2.RouterServiceGetInfoRequest(), timeout=timeout_s)

    async def close(self) -> None:
        """Cancels what still runs and closes the channel."""
        await self._channel.close()

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

    def __init__(
        self,
        call: grpc.aio.UnaryStreamCall[router_pb2.GenerateRequest, router_pb2.GenerateResponse],
        address: str,
        started_s: float,
    ) -> None:
        self._call = call
        self._address = address
        self._assembly = Assembly(time.monotonic, started_s)

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        try:
            with typed_errors(self._address):
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
