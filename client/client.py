"""The blocking client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Protocol

import grpc

from client.channels import Asking, Channels, Opened
from client.completion import Assembly, Completion, Delta
from client.credentials import Credentials
from client.errors import typed_errors
from client.fit import is_duration, require_fit
from client.request import GenerateOptions, Prompt, Sampling, build_request
from paceline.rpc import open_blocking_channel
from paceline.v1 import router_pb2

_NO_CREDENTIALS = Credentials()


class PacelineClient:
    """Talks to one router; use it as a context manager, or close it. Safe to share between threads.

    request_timeout_s bounds each request as a whole; None sets no bound. Raises InvalidInputError for an address that
    is none, ConfigError for certificates that cannot be used.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:7100",
        *,
        request_timeout_s: float | None = None,
        credentials: Credentials = _NO_CREDENTIALS,
    ) -> None:
        self.address = address
        self._asking = Asking.by(credentials, address, request_timeout_s)
        self._channels = Channels(self._asking, open_blocking_channel)

    def generate(
        self, prompt: Prompt, *, sampling: Sampling | None = None, options: GenerateOptions | None = None
    ) -> Generation:
        """Sends a request and returns at once. Raises InvalidInputError naming a field that does not fit, or after
        ``close``."""
        request = build_request(prompt, sampling, options)
        return Generation(request, self._channels.take(), self._asking)

    def info(self, *, timeout_s: float = 5.0) -> router_pb2.RouterServiceGetInfoResponse:
        """The router, its fleet and its limits. Raises a PacelineError."""
        require_fit(is_duration(timeout_s), "timeout_s", timeout_s, "seconds, above 0")
        opened = self._channels.take()
        with typed_errors(self.address, self._asking.tls):
            return opened.stub.GetInfo(
                router_pb2.RouterServiceGetInfoRequest(), timeout=timeout_s, metadata=self._asking.metadata
            )

    def close(self) -> None:
        """Cancels what still runs and closes the connection."""
        for channel in self._channels.end():
            channel.close()

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

    def __init__(self, request: router_pb2.GenerateRequest, opened: Opened[grpc.Channel], asking: Asking) -> None:
        self._assembly = Assembly(time.monotonic, time.monotonic())
        self._call: _Call = opened.stub.Generate(request, timeout=asking.timeout_s, metadata=asking.metadata)
        self._opened = opened
        self._asking = asking

    def __iter__(self) -> Iterator[Delta]:
        return self

    def __next__(self) -> Delta:
        with typed_errors(self._asking.address, self._asking.tls):
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
