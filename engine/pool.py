"""Storage of KV and features: one slot a token, page_size slots a page."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class TargetCache:
    """A target's pool on one rank: num_pages pages for requests, and a spare one that takes what padded rows write.

    Zeroed at birth: a padded kernel may read a slot before its first write.
    """

    k: tuple[Tensor, ...]  # a layer: [slots, kv_heads / tp, head_dim]
    v: tuple[Tensor, ...]
    features: Tensor | None  # [slots, Hd], on rank 0 of a target with a head
    num_pages: int
    page_size: int

    @property
    def spare_slot(self) -> int:
        """Past the pages, so that no request owns it."""
        return self.num_pages * self.page_size

    @property
    def pools(self) -> list[Tensor]:
        """All that moves with a slot."""
        features = [] if self.features is None else [self.features]
        return [*self.k, *self.v, *features]

    @property
    def num_bytes(self) -> int:
        return sum(pool.nbytes for pool in self.pools)


@dataclass(frozen=True, slots=True)
class HeadCache:
    """A head's pool: its one layer's KV, of num_pages pages and a spare one, as in a TargetCache. Zeroed at birth."""

    k: Tensor  # [slots, kv_heads, head_dim]
    v: Tensor
    num_pages: int
    page_size: int

    @property
    def spare_slot(self) -> int:
        """Past the pages, so that no session owns it."""
        return self.num_pages * self.page_size

    @property
    def num_bytes(self) -> int:
        return self.k.nbytes + self.v.nbytes
