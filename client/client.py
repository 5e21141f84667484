"""The blocking client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Protocol

from client.completion import Assembly, Completion, Delta
from client.errors import typed_errors
from client.request import GenerateOptions, Prompt, Sampling, build_request
from paceline.rpc import open_blocking_channel
from paceline.v1 import router_pb2, router_pb2_grpc


class PacelineClient:
    """Talks to one router; use it as a context manager, or close it. Safe to share between threads.

    request_timeout_s bounds each request as a whole; None sets no bound.
    """

    def __init__(self, address: str = "127.0.0.1:7100", *, request_timeout_s: float | None = None) -> None:
        self.address = address
        self._request_timeout_s = request_timeout_s
        self._channel = open_blocking_channel(address)
        self._stub = router_pb2_grpc.RouterServiceStub(self._channel)

    def generate(
        self, prompt: Prompt, *, sampling: Sampling | None = None, options: GenerateOptions | None = None
    ) -> Generation:
        """Sends a request and returns at once. Raises InvalidInputError for a value that cannot be sent."""
        request = build_request(prompt, sampling or Sampling(), options or GenerateOptions())
        started_s = time.monotonic()
        return Generation(self._stub.Generate(request, timeout=self._request_timeout_s), self.address, started_s)

    def info(self, *, timeout_s: float = 5.0) -> router_pb2.RouterServiceGetInfoResponse:
        """The router, its fleet and its limits. Raises a PacelineError."""
        with typed_errors(self.address):
            return self._stub.GetInfo(router_pb2.RouterServiceGetInfoRequest(), timeout=timeout_s)

    def close(self) -> None:
        """Cancels what still runs and closes the channel."""
        self._channel.close()

    def __enter__(self) -> PacelineClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Generation:
    """A running request: iterate it for deltas, call result() for the whole, close it to cancel what is left.

    Iterating raises a PacelineError where the request fails. Used by one thread at a time; cancel() by any.
    """

    def __init__(self, call: _Call, address: str, started_s: float) -> None:
        self._call = call
        self._address = address
        self._assembly = Assembly(time.monotonic, started_s)

    def __iter__(self) -> Iterator[Delta]:
        return self

    def __next__(self) -> Delta:
        with typed_errors(self._address):
            return self._assembly.add(next(self._call))

    def result(self) -> Completion:
        """Waits for the end; deltas not yet taken are read and joined. Raises a PacelineError."""
        for _ in self:
            pass
        return self._assembly.completion()

    def cancel(self) -> None:
        """Aborts the request on the services; no effect once it has ended."""
        self._call.cancel()

    close = cancel

    def __enter__(self) -> Generation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()


class _Call(Protocol):
    """gRPC's own response iterator, which it does not name."""

    def __next__(self) -> router_pb2.GenerateResponse: ...

    def cancel(self) -> bool: ...
