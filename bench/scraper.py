"""Scraper: reads metrics as Prometheus does."""

from __future__ import annotations

import contextlib
import threading
import urllib.request
from collections.abc import Sequence
from types import TracebackType
from typing import Self

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        while not self._over.wait(_INTERVAL_S):
            for url in self._urls:
                with contextlib.suppress(OSError):  # a service that has ended is missed by its clients, not here
                    urllib.request.urlopen(url, timeout=_TIMEOUT_S).read()
