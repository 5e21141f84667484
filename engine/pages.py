"""KV pages: who holds which page. No tensors; the storage itself is a pool elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.admission import pages_for
from paceline.errors import OutOfPagesError

__all__ = ["HeldPages", "OutOfPagesError", "PageAllocator", "PageTable", "pages_for", "slots_at"]


class PageAllocator:
    """Hands out the pages [0, num_pages) of one pool; a page holds page_size slots.

    A page is free or held exactly once. Fresh pages come in ascending order, and a freed page is the next
    one out. One thread only.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self._free = list(range(num_pages - 1, -1, -1))
        self._held = bytearray(num_pages)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def alloc(self, num_pages: int) -> list[int]:
        """Takes num_pages pages. Raises OutOfPagesError, and then takes none."""
        if num_pages > len(self._free):
            raise OutOfPagesError(
                f"{num_pages} KV pages were asked for and {len(self._free)} of {self.num_pages} are free; "
                "wait for a request to end, or give the pool more memory"
            )
        split = len(self._free) - num_pages
        pages = self._free[split:][::-1]
        del self._free[split:]
        for page in pages:
            self._held[page] = 1
        return pages

    def free(self, pages: Sequence[int]) -> None:
        """Takes pages back; each must be held."""
        for page in reversed(pages):
            assert self._held[page], f"page {page} is freed twice"
            self._held[page] = 0
            self._free.append(page)

    def check(self) -> None:
        """Asserts that every page is free or held exactly once."""
        assert len(set(self._free)) == len(self._free), "a page is free twice"
        assert not any(self._held[page] for page in self._free), "a page is free and held"
        assert len(self._free) + sum(self._held) == self.num_pages, "a page is neither free nor held"


class HeldPages:
    """The pages of one sequence, in order of position. Somebody else owns them."""

    def __init__(self, page_ids: np.ndarray, page_size: int) -> None:
        """page_ids: int32."""
        self.page_ids = page_ids
        self.page_size = page_size

    @property
    def capacity(self) -> int:
        """Tokens that the held pages hold."""
        return len(self.page_ids) * self.page_size

    def slots(self, start: int, stop: int) -> np.ndarray:
        """int64 [stop - start]: the slot of each position in [start, stop), all within capacity."""
        positions = np.arange(start, stop)
        return self.page_ids[positions // self.page_size].astype(np.int64) * self.page_size + positions % self.page_size


def slots_at(page_ids: np.ndarray, places: np.ndarray, positions: np.ndarray, page_size: int) -> np.ndarray:
    """int64: the slot of each position of the sequence in row ``places`` of page_ids. The arrays broadcast."""
    page, offset = np.divmod(positions, page_size)
    return page_ids[places, page] * np.int64(page_size) + offset


class PageTable(HeldPages):
    """The pages of one sequence, which it owns until ``close``."""

    def __init__(self, allocator: PageAllocator) -> None:
        super().__init__(np.zeros(0, np.int32), allocator.page_size)
        self._allocator = allocator
        self.pages: list[int] = []  # the same pages as in page_ids

    def reserve(self, num_tokens: int) -> None:
        """Grows to hold num_tokens tokens; never shrinks. Raises OutOfPagesError, and then nothing changed."""
        missing = pages_for(num_tokens, self.page_size) - len(self.pages)
        if missing <= 0:
            return
        self.pages += self._allocator.alloc(missing)
        self.page_ids = np.array(self.pages, np.int32)

    def close(self) -> None:
        """Frees all pages; a second call does nothing."""
        pages, self.pages = self.pages, []
        self.page_ids = np.zeros(0, np.int32)
        self._allocator.free(pages)
