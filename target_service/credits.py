"""Credits: what each router's stream may spend of the target's sequence slots and KV pages."""

from __future__ import annotations

from dataclasses import dataclass

from target_service.request import Cost


@dataclass(frozen=True, slots=True)
class Grant:
    """Cumulative counts from the stream's start: what it may have spent at most by now."""

    slots: int
    pages: int


@dataclass(slots=True)
class _Account:
    spent_slots: int = 0  # by all submissions so far
    spent_pages: int = 0
    held_slots: int = 0  # by those that run
    held_pages: int = 0


class CreditBook:
    """Shares slots and pages equally over the streams, one slot each at least. Pure; one thread.

    A submission spends when it arrives and gets back at its end, whatever that is. A stream's share falls
    when another joins; one that holds more than its share may spend again once it has fallen below. A stream that
    holds nothing may take any free page, or a request of more pages than a share would wait for ever.
    """

    def __init__(self, *, num_slots: int, num_pages: int) -> None:
        self._num_slots = num_slots
        self._num_pages = num_pages
        self._accounts: dict[int, _Account] = {}

    @property
    def free_slots(self) -> int:
        return max(0, self._num_slots - sum(account.held_slots for account in self._accounts.values()))

    def set_slots(self, num_slots: int) -> None:
        self._num_slots = num_slots

    def open(self, stream: int) -> None:
        self._accounts[stream] = _Account()

    def close(self, stream: int) -> None:
        """All that the stream's requests held must have been given back."""
        account = self._accounts.pop(stream)
        assert account.held_slots == 0, f"stream {stream} ends and holds {account.held_slots} slots"
        assert account.held_pages == 0, f"stream {stream} ends and holds {account.held_pages} pages"

    def spend(self, stream: int, cost: Cost) -> bool:
        """Counts a submission. True: it may run, and holds its cost until ``give_back``; False: it has no credit."""
        account = self._accounts[stream]
        available = self._available(account)
        account.spent_slots += cost.slots
        account.spent_pages += cost.pages
        if cost.slots > available.slots or cost.pages > available.pages:
            return False
        account.held_slots += cost.slots
        account.held_pages += cost.pages
        return True

    def give_back(self, stream: int, cost: Cost) -> None:
        account = self._accounts[stream]
        account.held_slots -= cost.slots
        account.held_pages -= cost.pages

    def grant(self, stream: int) -> Grant:
        account = self._accounts[stream]
        available = self._available(account)
        return Grant(account.spent_slots + available.slots, account.spent_pages + available.pages)

    def _available(self, account: _Account) -> Cost:
        streams = self._accounts.values()
        free_slots = self._num_slots - sum(other.held_slots for other in streams)
        free_pages = self._num_pages - sum(other.held_pages for other in streams)
        share = max(1, self._num_slots // len(streams))  # more streams than slots take turns
        slots = min(share - account.held_slots, free_slots)
        page_share = self._num_pages // len(streams) if account.held_slots else self._num_pages
        pages = min(page_share - account.held_pages, free_pages)
        return Cost(max(0, slots), max(0, pages))
