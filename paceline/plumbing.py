"""What every service is made with, whatever it serves: its flags, certificates, health port and byte counts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import grpc
from prometheus_client import CollectorRegistry, Gauge

from paceline.address import is_http_url
from paceline.config import flag, require
from paceline.errors import ConfigError
from paceline.link_fault import link_fault
from paceline.logs import FORMATS
from paceline.rpc import RpcServer, open_channel
from paceline.rpc_bytes import ByteMeter, LaneBytes
from paceline.service_kind import wrong_service
from paceline.tls import TlsFiles, TlsIdentity
from paceline.tls_fault import tls_fault
from paceline.tls_flags import TlsFlags
from paceline.tracing import Tracer


@dataclass(frozen=True, slots=True)
class ServiceFlags(TlsFlags):
    """The flags that router, draft and target share."""

    tls_verify_clients: bool = flag(True, help="refuse callers that show no certificate of --tls-ca")
    health_port: int = flag(
        0, help="plaintext port for health alone, for probes while --tls-cert is set; 0: only beside the service"
    )
    otlp_traces_endpoint: str = flag(
        "", help="URL of an OTLP collector's traces, http://HOST:4318/v1/traces; unset: no traces"
    )
    log_format: str = flag("text", help="how log lines are written: text, or a JSON object a line", choices=FORMATS)

    def check_service_flags(self) -> None:
        """Raises ConfigError, naming the flag."""
        require(0 <= self.health_port < 65536, "health_port", self.health_port, "0 to 65535")
        endpoint = self.otlp_traces_endpoint
        is_endpoint = not endpoint or is_http_url(endpoint)
        require(is_endpoint, "otlp_traces_endpoint", endpoint, "a URL like http://HOST:4318/v1/traces")
        self.server_tls()

    def server_tls(self) -> TlsFiles | None:
        """None: plaintext. Raises ConfigError for flags that do not make a whole."""
        files = self.tls_files(verify_clients=self.tls_verify_clients)
        if files is not None and not files.cert:
            raise ConfigError("--tls-cert is unset; a service that speaks TLS needs --tls-cert, --tls-key and --tls-ca")
        return files


class Plumbing:
    """Makes a service's server and its channels to peers. The default is plaintext and counts nothing."""

    def __init__(
        self,
        flags: ServiceFlags | None = None,
        registry: CollectorRegistry | None = None,
        *,
        service: str = "",
        trace_ratio: float = 0.0,
    ) -> None:
        """service: its name in traces. trace_ratio: share of the requests that are traced without a caller's word.

        Raises ConfigError for certificates that cannot be used, and for traces without OpenTelemetry.
        """
        files = None if flags is None else flags.server_tls()
        self.tls = None if files is None else TlsIdentity(files)
        self._health_port = 0 if flags is None else flags.health_port
        self._meter = None if registry is None else ByteMeter(registry)
        self.tracer = Tracer()
        if flags is not None and flags.otlp_traces_endpoint:
            from paceline.otel import otlp_tracer  # of an extra

            self.tracer = otlp_tracer(service, flags.otlp_traces_endpoint, ratio=trace_ratio)
        if registry is not None and self.tls is not None:
            _watch_expiry(self.tls, registry)

    def server(self, service_name: str) -> RpcServer:
        return RpcServer(service_name, tls=self.tls, health_port=self._health_port, meter=self._meter)

    def open_channel(self, address: str) -> grpc.aio.Channel:
        """For one connection: the next one wants a new channel, for the certificates may have changed."""
        channel = open_channel(address, self.tls)
        return channel if self._meter is None else self._meter.channel(channel)

    @property
    def lane_bytes(self) -> LaneBytes:
        """What lanes count in."""
        return LaneBytes() if self._meter is None else self._meter.lanes

    def close(self) -> None:
        """Sends the spans that are left. May take seconds."""
        self.tracer.close()

    async def explain(self, address: str, error: grpc.aio.AioRpcError, *, wanted: str = "") -> str:
        """Why a call to a peer failed: what is wrong with the certificates or the connection, or what the peer said.

        wanted: "target" or "draft", for a peer that a router's flag named as one; "": what is there is not looked at.
        """
        details = error.details() or error.code().name
        fault = ""
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            fault = await asyncio.to_thread(tls_fault, address, self.tls, details)
        elif wanted:
            fault = await self.other_kind(address, error, wanted=wanted)
        return fault or link_fault(error.code(), details) or details

    async def other_kind(self, address: str, error: grpc.aio.AioRpcError, *, wanted: str) -> str:
        """What is at a peer's address in place of the target or draft that is wanted; see ``wrong_service``."""
        return await asyncio.to_thread(wrong_service, error, address, self.tls, wanted=wanted)


def _watch_expiry(tls: TlsIdentity, registry: CollectorRegistry) -> None:
    gauge = Gauge(
        "paceline_tls_certificate_not_after_seconds",
        "When the own certificate ends, Unix time; 0 where --tls-ca does not verify it.",
        registry=registry,
    )
    gauge.set_function(lambda: tls.current().not_after_s or 0.0)
