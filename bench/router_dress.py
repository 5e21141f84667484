"""Dress: what a variant of the router's bench adds to every service."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.otlp_sink import OtlpSink
from bench.throwaway_certificate import throwaway_certificate
from client.credentials import Credentials
from paceline.tls import TlsFiles

DIRECT, PLAIN, OBSERVED, MTLS = "direct", "plain", "observed", "mtls"
DRESSES = (DIRECT, PLAIN, OBSERVED, MTLS)


@dataclass(frozen=True, slots=True)
class Dress:
    """tls: on every hop; None: plaintext. traces_url: of a collector; where it is set, metrics are served, too."""

    name: str
    tls: TlsFiles | None = None
    traces_url: str = ""

    @property
    def credentials(self) -> Credentials:
        """Of the clients."""
        return Credentials(self.tls)

    def tls_flags(self) -> list[str]:
        """Of a service."""
        if self.tls is None:
            return []
        return ["--tls-cert", self.tls.cert, "--tls-key", self.tls.key, "--tls-ca", self.tls.ca]

    def observed_flags(self, metrics_port: int) -> list[str]:
        """Of a service that serves its metrics there."""
        if not self.traces_url:
            return []
        return ["--metrics-port", str(metrics_port), "--otlp-traces-endpoint", self.traces_url]


@contextlib.contextmanager
def dresses(names: Sequence[str], folder: Path) -> Iterator[list[Dress]]:
    """Those of DRESSES; the collector and the certificate last as long as the context. Raises ConfigError."""
    with contextlib.ExitStack() as stack:
        made = []
        for name in names:
            tls = throwaway_certificate(folder) if name == MTLS else None
            url = stack.enter_context(contextlib.closing(OtlpSink())).url if name == OBSERVED else ""
            made.append(Dress(name, tls, url))
        yield made


def free_port() -> int:
    """One that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
