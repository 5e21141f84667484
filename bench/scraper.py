"""Scraper: reads metrics as Prometheus does."""

from __future__ import annotations

import contextlib
import threading
import urllib.request
from collections.abc import Sequence

_INTERVAL_S = 1.0  # an operator's is 15 or 30
_TIMEOUT_S = 5.0


class Scraper:
    """Reads each port's metrics once a second, by a thread of its own, until closed."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._urls = [f"http://127.0.0.1:{port}/metrics" for port in ports]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(_INTERVAL_S):
            for url in self._urls:
                # A service that has ended is missed by its clients, not here.
                with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=_TIMEOUT_S) as reply:
                    reply.read()
