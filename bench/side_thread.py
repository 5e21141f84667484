"""SideThread: looks at services while something else keeps them busy."""

from __future__ import annotations

import abc
import asyncio
import threading
from types import TracebackType
from typing import Self

from paceline.errors import PacelineError


class SideThread(abc.ABC):
    """``look`` runs on a thread and an event loop of its own, from the start of the context to its end."""

    def __init__(self, name: str) -> None:
        self.error: PacelineError | None = None  # what ended it early
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abc.abstractmethod
    async def look(self) -> None:
        """Returns soon after ``is_over`` is true. May raise a PacelineError."""

    @property
    def is_over(self) -> bool:
        return self._stop.is_set()

    def _run(self) -> None:
        try:
            asyncio.run(self.look())
        except PacelineError as error:
            self.error = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
