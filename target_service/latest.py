"""Latest: a value that changes, and those that wait for it to change."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Latest(Generic[T]):
    """Event loop only. A reader that is too slow for some values gets the newest."""

    def __init__(self) -> None:
        self.value: T | None = None
        self._changed = asyncio.Event()

    def set(self, value: T) -> None:
        self.value = value
        self._changed.set()
        self._changed = asyncio.Event()

    async def next(self) -> T:
        """The value of the next ``set`` that is awaited."""
        await self._changed.wait()
        assert self.value is not None
        return self.value
