"""The only queue: requests that wait for a target, first in, first out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

from paceline.errors import CapacityError

ItemT = TypeVar("ItemT")


class RequestQueue(Generic[ItemT]):
    """Bounded for newcomers. Requests that come back (replays) go to the front and are never refused."""

    def __init__(self, max_len: int) -> None:
        self.max_len = max_len
        self._items: OrderedDict[ItemT, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    def push(self, item: ItemT) -> None:
        """Raises CapacityError where max_len items wait already."""
        if len(self._items) >= self.max_len:
            raise CapacityError(
                f"the router's queue is full: {self.max_len} requests wait; try again later, "
                "add targets or raise --max-queued-requests"
            )
        self._items[item] = None

    def push_front(self, item: ItemT) -> None:
        self._items[item] = None
        self._items.move_to_end(item, last=False)

    def __iter__(self) -> Iterator[ItemT]:
        """From the front; the queue must not change meanwhile."""
        return iter(self._items)

    def discard(self, item: ItemT) -> None:
        """Takes an item out, wherever it stands; none is fine."""
        self._items.pop(item, None)
