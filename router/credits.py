"""What a router may still spend on one target's stream."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CreditLedger:
    """Cumulative counts since the stream's start: granted by the target, spent by this router.

    A grant may fall below what is spent (another router joined): then nothing is left until it has risen again.
    """

    granted_slots: int = 0
    granted_pages: int = 0
    spent_slots: int = 0
    spent_pages: int = 0

    def grant(self, *, slots: int, pages: int) -> None:
        """Replaces the counts granted: they are cumulative."""
        self.granted_slots = slots
        self.granted_pages = pages

    def covers(self, pages: int) -> bool:
        """Whether one more request of so many pages may be submitted."""
        return self.spent_slots < self.granted_slots and self.spent_pages + pages <= self.granted_pages

    def spend(self, pages: int) -> None:
        """One slot and so many pages; ``covers`` must hold."""
        assert self.covers(pages)
        self.spent_slots += 1
        self.spent_pages += pages

    @property
    def free_slots(self) -> int:
        return max(0, self.granted_slots - self.spent_slots)

    @property
    def free_pages(self) -> int:
        return max(0, self.granted_pages - self.spent_pages)
