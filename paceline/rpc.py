"""gRPC servers and channels with the options, health, reflection and drain that all services share."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Sequence

import grpc
from grpc_channelz.v1 import channelz
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from paceline.address import address_of
from paceline.errors import ConfigError
from paceline.ports import Listener, check_ports
from paceline.rpc_bytes import ByteMeter
from paceline.tls import TlsIdentity

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
_SHARED_OPTIONS: list[tuple[str, str | int]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A hung peer: keepalive_timeout alone held a call for 60 s, ping_timeout dropped it within a second.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
]
_SERVER_OPTIONS = [
    *_SHARED_OPTIONS,
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
]
_CHANNEL_OPTIONS = [
    *_SHARED_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # how long one attempt may take, TLS handshake included; not a pause
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.dns_min_time_between_resolutions_ms", 2_000),
]


def open_channel(address: str, tls: TlsIdentity | None = None) -> grpc.aio.Channel:
    """A channel to host:port; connects when first used and again after a loss. Plaintext without tls.

    It keeps the certificates that the files hold now.
    """
    if tls is None:
        return grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(address, tls.channel_credentials(), options=_tls_options(tls))


def open_blocking_channel(address: str, tls: TlsIdentity | None = None) -> grpc.Channel:
    """The same for programs without an event loop."""
    if tls is None:
        return grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
    return grpc.secure_channel(address, tls.channel_credentials(), options=_tls_options(tls))


class RpcServer:
    """One service on one port, with health under "", its full name, "liveness" and "readiness".

    Not ready until ``set_ready(True)``; alive from ``start`` on. With tls its port speaks TLS with the files' newest
    certificates. health_port: a plaintext port for health alone, for probes that speak no TLS; 0: none. meter: counts
    its calls.
    """

    def __init__(
        self,
        service_name: str,
        *,
        tls: TlsIdentity | None = None,
        health_port: int = 0,
        meter: ByteMeter | None = None,
    ) -> None:
        server = grpc.aio.server(options=_SERVER_OPTIONS)
        self.server = server if meter is None else meter.server(server)
        self._tls = tls
        self._health_port = health_port
        self._health_server: grpc.aio.Server | None = None
        self._health = health.aio.HealthServicer()
        self._ready_names = ("", service_name, "readiness")
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        channelz.add_channelz_servicer(self.server)
        names = (service_name, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self.server)

    async def start(self, host: str, port: int) -> int:
        """Binds and starts; returns the port (a free one for port 0). Raises ConfigError where one is taken."""
        bound = _bind(self.server, Listener("--port", host, port), tls=self._tls)
        if self._health_port:
            self._health_server = grpc.aio.server(options=_SERVER_OPTIONS)
            health_pb2_grpc.add_HealthServicer_to_server(self._health, self._health_server)
            _bind(self._health_server, Listener("--health-port", host, self._health_port), tls=None)
            await self._health_server.start()
        await self.server.start()
        await self._health.set("liveness", health_pb2.HealthCheckResponse.SERVING)
        await self.set_ready(False)
        return bound

    async def set_ready(self, ready: bool) -> None:
        status = health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in self._ready_names:
            await self._health.set(name, status)

    async def stop(self, grace_s: float) -> None:
        """Refuses new calls, gives running ones grace_s seconds, then ends them."""
        await self._health.enter_graceful_shutdown()
        await self.server.stop(grace_s)
        if self._health_server is not None:
            await self._health_server.stop(0)


@contextlib.asynccontextmanager
async def termination_event(
    signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT),
) -> AsyncIterator[asyncio.Event]:
    """An event that SIGTERM or SIGINT sets, on the running loop."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    for number in signals:
        loop.add_signal_handler(number, event.set)
    try:
        yield event
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def _bind(server: grpc.aio.Server, listener: Listener, *, tls: TlsIdentity | None) -> int:
    check_ports([listener])  # it was free before the model was loaded; gRPC's own complaint is a line on stderr
    address = address_of(listener.host, listener.port)
    try:
        if tls is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, tls.server_credentials())
    except RuntimeError as error:
        raise ConfigError(f"gRPC cannot listen on {address}: choose another {listener.flag} or host") from error


def _tls_options(tls: TlsIdentity) -> list[tuple[str, str | int]]:
    """peer_name stands in for the address's host where certificates carry the service's name, not the pod's."""
    name = tls.files.peer_name
    return [*_CHANNEL_OPTIONS, *([("grpc.ssl_target_name_override", name)] if name else [])]
