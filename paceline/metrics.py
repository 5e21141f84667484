"""Prometheus over HTTP: each service makes its own registry and passes it down."""

from __future__ import annotations

from types import TracebackType

from prometheus_client import CollectorRegistry, start_http_server

from paceline.address import bare_host
from paceline.ports import Listener, cannot_listen


class MetricsServer:
    """Serves a registry on host:port until closed; port 0 serves nothing. Raises ConfigError: the port is taken."""

    def __init__(self, registry: CollectorRegistry, *, host: str, port: int) -> None:
        self._server = None
        if port == 0:
            return
        try:
            self._server, self._thread = start_http_server(port, addr=bare_host(host), registry=registry)
        except OSError as error:
            raise cannot_listen(Listener("--metrics-port", host, port), error) from error

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
