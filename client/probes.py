"""What a service says to somebody who asks it from here: who it is, whether it is ready, its clock and certificate."""

from __future__ import annotations

import socket
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from client.errors import typed_errors
from paceline.address import HostPort, parse_address
from paceline.errors import PacelineError
from paceline.rpc import open_blocking_channel
from paceline.tls import TlsIdentity
from paceline.v1 import common_pb2, draft_pb2, draft_pb2_grpc, router_pb2, router_pb2_grpc, target_pb2, target_pb2_grpc

_TIMEOUT_S = 3.0
_INFO: dict[str, tuple[Any, Any]] = {
    "router": (router_pb2_grpc.RouterServiceStub, router_pb2.RouterServiceGetInfoRequest),
    "target": (target_pb2_grpc.TargetServiceStub, target_pb2.TargetServiceGetInfoRequest),
    "draft": (draft_pb2_grpc.DraftServiceStub, draft_pb2.DraftServiceGetInfoRequest),
}


@dataclass(frozen=True, slots=True)
class Probe:
    """One service as seen from here. error: why it could not be asked; info is empty then."""

    service: str
    address: str
    info: common_pb2.ServiceInfo
    ready: bool = False
    error: str = ""
    clock_ahead_s: float | None = None  # of this machine's clock, to a second; None: not measured
    certificate_ends_s: float | None = None  # Unix time; None: plaintext, or it cannot be told
    clock_error: str = ""  # why its clock could not be told, where it was to be


@dataclass(frozen=True, slots=True)
class Prober:
    """How to ask. metrics_port: where each service's host serves its metrics, whose answers carry the time; 0: none."""

    tls: TlsIdentity | None = None
    metadata: tuple[tuple[str, str], ...] = ()
    metrics_port: int = 0

    def ask(self, service: str, address: str) -> Probe:
        """Within seconds, whatever is there."""
        stub, request = _INFO[service]
        info, ready, error = common_pb2.ServiceInfo(), False, ""
        try:
            with typed_errors(address, self.tls), open_blocking_channel(address, self.tls) as channel:
                reply = stub(channel).GetInfo(request(), timeout=_TIMEOUT_S, metadata=self.metadata)
                info = reply.info
                health: Any = health_pb2_grpc.HealthStub(channel)
                state = health.Check(health_pb2.HealthCheckRequest(service="readiness"), timeout=_TIMEOUT_S)
                ready = state.status == health_pb2.HealthCheckResponse.SERVING
        except PacelineError as failure:
            error = str(failure)
        place = parse_address(address)
        if place is None:  # one of gRPC's schemes, like unix:
            return Probe(service, address, info, ready, error)
        ahead_s = self._clock_ahead_s(place) if self.metrics_port else None
        is_unknown = self.metrics_port and ahead_s is None
        why = f"no metrics answer at {place.url_host}:{self.metrics_port}" if is_unknown else ""
        return Probe(service, address, info, ready, error, ahead_s, self._certificate_ends_s(place), why)

    def _clock_ahead_s(self, place: HostPort) -> float | None:
        url = f"http://{place.url_host}:{self.metrics_port}/metrics"
        try:
            before = time.time()
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
                stated = answer.headers.get("Date")
        except (urllib.error.URLError, OSError):
            return None
        if stated is None:
            return None
        # Cut to a whole second there, and asked for over a time here: the smallest difference that explains both.
        theirs = parsedate_to_datetime(stated).timestamp()
        if theirs + 1 < before:
            return theirs + 1 - before
        return max(0.0, theirs - time.time())

    def _certificate_ends_s(self, place: HostPort) -> float | None:
        if self.tls is None:
            return None
        files = self.tls.files
        context = ssl.create_default_context(cafile=files.ca)
        try:
            if files.cert:
                context.load_cert_chain(files.cert, files.key)
            with (
                socket.create_connection(place, _TIMEOUT_S) as plain,
                context.wrap_socket(plain, server_hostname=files.peer_name or place.host) as connection,
            ):
                certificate = connection.getpeercert()
        except (ssl.SSLError, OSError):  # the call itself has said why
            return None
        return ssl.cert_time_to_seconds(str(certificate["notAfter"])) if certificate else None
