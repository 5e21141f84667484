"""Bytes of every RPC method, counted where messages are made and parsed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import grpc
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

_LANES = "RoundLane"  # in place of a method: what travels beside Speculate

_Serialise: TypeAlias = "Callable[[Any], bytes]"
_Parse: TypeAlias = "Callable[[bytes], Any]"


@dataclass(slots=True)
class MethodBytes:
    """Of one method: message bytes without framing, and messages."""

    sent: int = 0
    received: int = 0
    sent_messages: int = 0
    received_messages: int = 0


class LaneBytes:
    """The same of all lanes of a process: frames' payloads. From any thread."""

    def __init__(self) -> None:
        self.counts = MethodBytes()
        self._lock = threading.Lock()

    def note_sent(self, num_bytes: int) -> None:
        with self._lock:
            self.counts.sent += num_bytes
            self.counts.sent_messages += 1

    def note_received(self, num_bytes: int) -> None:
        with self._lock:
            self.counts.received += num_bytes
            self.counts.received_messages += 1


class ByteMeter(Collector):
    """A wrapper of servers and channels, and a collector of the registry. Event loop only.

    The event loop alone changes the methods' counts, without a lock; a scrape from another thread reads whole numbers.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.methods: dict[str, MethodBytes] = {}
        self.lanes = LaneBytes()
        registry.register(self)

    def server(self, server: grpc.aio.Server) -> grpc.aio.Server:
        """The server, which counts the calls of handlers that it is given from now on.

        An interceptor would do the same and costs each call 50 us more.
        """
        return _MeteredServer(server, self)

    def channel(self, channel: grpc.aio.Channel) -> grpc.aio.Channel:
        """The channel with its calls counted, as far as a generated stub and ``async with`` use one."""
        return cast("grpc.aio.Channel", _MeteredChannel(channel, self))

    def of(self, method: str) -> MethodBytes:
        """The counts of "/package.Service/Method", or of its name alone."""
        return self.methods.setdefault(method.rpartition("/")[2], MethodBytes())

    def collect(self) -> Iterator[Metric]:
        for what in ("bytes", "messages"):
            family = CounterMetricFamily(
                f"paceline_rpc_{what}",
                f"gRPC {what} by method and direction; RoundLane: rounds beside gRPC.",
                labels=("method", "direction"),
            )
            for method, count in self._all():
                sent, received = (
                    (count.sent, count.received) if what == "bytes" else (count.sent_messages, count.received_messages)
                )
                family.add_metric((method, "sent"), sent)
                family.add_metric((method, "received"), received)
            yield family

    def _all(self) -> list[tuple[str, MethodBytes]]:
        lanes = self.lanes.counts
        return [*self.methods.items(), *([(_LANES, lanes)] if lanes.sent_messages or lanes.received_messages else [])]


class _MeteredServer(grpc.aio.Server):
    """Gives the handlers that it is given to the one that it wraps, with their messages counted."""

    def __init__(self, server: grpc.aio.Server, meter: ByteMeter) -> None:
        self._server = server
        self._handlers = _MeteredHandlers(meter)
        server.add_generic_rpc_handlers((self._handlers,))

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        self._handlers.inner += generic_rpc_handlers

    def add_registered_method_handlers(self, *_: object) -> None:
        """Generated code offers its handlers twice; those that it offered first do."""

    def add_insecure_port(self, address: str) -> int:
        return self._server.add_insecure_port(address)

    def add_secure_port(self, address: str, server_credentials: grpc.ServerCredentials) -> int:
        return self._server.add_secure_port(address, server_credentials)

    async def start(self) -> None:
        await self._server.start()

    async def stop(self, grace: float | None) -> None:
        await self._server.stop(grace)

    async def wait_for_termination(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - gRPC's own
        return await self._server.wait_for_termination(timeout)


class _MeteredHandlers(grpc.GenericRpcHandler):
    """All of a server, so that a call takes one look-up; each method is wrapped once."""

    def __init__(self, meter: ByteMeter) -> None:
        self.inner: list[grpc.GenericRpcHandler] = []
        self._meter = meter
        self._metered: dict[str, Any] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = handler_call_details.method
        metered = self._metered.get(method)
        if metered is not None:
            return metered
        found = (handlers.service(handler_call_details) for handlers in self.inner)
        handler: Any = next((handler for handler in found if handler is not None), None)
        if handler is None or handler.request_deserializer is None:  # no such method, or one that takes bytes
            return handler
        count = self._meter.of(method)
        metered = self._metered[method] = handler._replace(
            request_deserializer=_counting_parse(handler.request_deserializer, count),
            response_serializer=_counting_serialise(handler.response_serializer, count),
        )
        return metered


class _MeteredChannel:
    """What a generated stub asks of a channel, and the context of the one that it wraps."""

    def __init__(self, channel: grpc.aio.Channel, meter: ByteMeter) -> None:
        self._channel = channel
        self._meter = meter

    def unary_unary(self, method: str, **options: Any) -> Any:
        return self._channel.unary_unary(method, **self._counting(method, options))

    def unary_stream(self, method: str, **options: Any) -> Any:
        return self._channel.unary_stream(method, **self._counting(method, options))

    def stream_unary(self, method: str, **options: Any) -> Any:
        return self._channel.stream_unary(method, **self._counting(method, options))

    def stream_stream(self, method: str, **options: Any) -> Any:
        return self._channel.stream_stream(method, **self._counting(method, options))

    async def close(self) -> None:
        await self._channel.close()

    async def __aenter__(self) -> _MeteredChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _counting(self, method: str, options: dict[str, Any]) -> dict[str, Any]:
        count = self._meter.of(method)
        return options | {
            "request_serializer": _counting_serialise(options["request_serializer"], count),
            "response_deserializer": _counting_parse(options["response_deserializer"], count),
        }


def _counting_parse(parse: _Parse, count: MethodBytes) -> _Parse:
    def counted(data: bytes) -> Any:
        count.received += len(data)
        count.received_messages += 1
        return parse(data)

    return counted


def _counting_serialise(serialise: _Serialise, count: MethodBytes) -> _Serialise:
    def counted(message: Any) -> bytes:
        data = serialise(message)
        count.sent += len(data)
        count.sent_messages += 1
        return data

    return counted
