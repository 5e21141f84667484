"""The only queue: requests that wait for a target, shared fairly between tenants, urgent ones of a tenant first."""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from paceline.errors import CapacityError

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True)
class Claim:
    """What a request asks of the queue.

    cost: estimated tokens, prompt and output together, at least 1. rank: see ``rank_of``; the lowest of a tenant leaves
    first.
    """

    tenant: str
    cost: float
    rank: float


def rank_of(arrived_at: float, priority: int, *, ageing_s: float) -> float:
    """A place in the order of a tenant: each level of priority counts like having come ageing_s seconds earlier.

    So the order of two requests never changes while they wait, and none waits for later ones of a higher priority for
    longer than the difference of their levels times ageing_s.
    """
    return arrived_at - priority * ageing_s


@dataclass(slots=True)
class _Part(Generic[ItemT]):
    """One tenant's requests, by rank, and what its turns have left it to spend."""

    weight: float
    deficit: float = 0.0
    cost: float = 0.0  # of all that wait
    entries: list[tuple[float, int, ItemT]] = field(default_factory=list)  # rank, order of arrival, item


class RequestQueue(Generic[ItemT]):
    """Bounded for newcomers. Requests that come back (replays) go to the front and are never refused.

    Between tenants it is deficit round robin (Shreedhar and Varghese, 1995) with a quantum that goes to zero: all that
    wait earn at the same pace, by their weights, and the first that can pay for its next request has its turn. A tenant
    with nothing waiting earns nothing.
    """

    def __init__(self, max_len: int) -> None:
        self.max_len = max_len
        self._returned: OrderedDict[ItemT, None] = OrderedDict()
        self._parts: dict[str, _Part[ItemT]] = {}
        self._places: dict[ItemT, tuple[Claim, int]] = {}  # of those in parts; the number breaks ties of rank
        self._num_pushed = 0

    def __len__(self) -> int:
        return len(self._returned) + len(self._places)

    @property
    def cost(self) -> float:
        """Estimated tokens of all that wait for their first turn."""
        return sum(part.cost for part in self._parts.values())

    @property
    def num_tenants(self) -> int:
        """With requests that wait."""
        return len(self._parts)

    def push(self, item: ItemT, claim: Claim, *, weight: float = 1.0) -> ItemT | None:
        """Puts a newcomer in; returns the item that had to leave for it, or None.

        A full queue makes room at the expense of the tenant with most waiting: its last one leaves, for a tenant
        with fewer, or for a more urgent one of its own. Raises CapacityError where the newcomer would be the one to go.
        """
        displaced = self._last_to_displace(claim) if len(self) >= self.max_len else None
        if displaced is not None:
            self.discard(displaced)
        part = self._parts.setdefault(claim.tenant, _Part(weight))
        self._num_pushed += 1
        self._places[item] = (claim, self._num_pushed)
        part.cost += claim.cost
        bisect.insort(part.entries, (claim.rank, self._num_pushed, item))
        return displaced

    def push_front(self, item: ItemT) -> None:
        """An item whose turn was paid for already."""
        self._returned[item] = None
        self._returned.move_to_end(item, last=False)

    def returned(self) -> Iterator[ItemT]:
        """Those that came back, from the front; the queue must not change meanwhile."""
        return iter(self._returned)

    def head(self) -> ItemT | None:
        """Whose turn it is among the others; None where none waits. The same one until it leaves or another comes."""
        part = self._next_part()
        return None if part is None else part.entries[0][2]

    def take(self, item: ItemT) -> None:
        """Takes out an item that has its turn; its tenant pays."""
        if item in self._returned:
            del self._returned[item]
            return
        claim, _ = self._places[item]
        self._parts[claim.tenant].deficit -= claim.cost
        self.discard(item)

    def discard(self, item: ItemT) -> None:
        """Takes an item out, wherever it stands, for nothing; none is fine."""
        self._returned.pop(item, None)
        place = self._places.pop(item, None)
        if place is None:
            return
        claim, number = place
        part = self._parts[claim.tenant]
        del part.entries[bisect.bisect_left(part.entries, (claim.rank, number))]
        part.cost -= claim.cost
        if not part.entries:
            del self._parts[claim.tenant]

    def settle(self, tenant: str, refund: float) -> None:
        """A request that had its turn cost so many tokens less than estimated (negative: more)."""
        part = self._parts.get(tenant)
        if part is not None:
            part.deficit += refund

    def cost_ahead(self, claim: Claim, *, weight: float = 1.0) -> float:
        """Tokens that would have their turn before a newcomer with this claim, if no other came."""
        own = self._parts.get(claim.tenant)
        before = sum(self._places[entry[2]][0].cost for entry in own.entries if entry[0] <= claim.rank) if own else 0.0
        share = (before + claim.cost) / weight  # what each of the others is served meanwhile, by its weight
        others = sum(
            min(part.cost, share * part.weight) for tenant, part in self._parts.items() if tenant != claim.tenant
        )
        return before + others

    def _next_part(self) -> _Part[ItemT] | None:
        """Of the tenant whose turn it is; all have earned until it can pay."""
        need, chosen = 0.0, None
        for part in self._parts.values():
            short = (self._places[part.entries[0][2]][0].cost - part.deficit) / part.weight
            if chosen is None or short < need:
                need, chosen = short, part
        if need > 0:
            for part in self._parts.values():
                part.deficit += need * part.weight
        return chosen

    def _last_to_displace(self, newcomer: Claim) -> ItemT:
        refusal = CapacityError(
            f"the router's queue is full: {self.max_len} requests wait; add targets or raise --max-queued-requests"
        )
        if not self._parts:
            raise refusal
        longest = max(self._parts.values(), key=lambda part: len(part.entries))
        own = self._parts.get(newcomer.tenant)
        if len(longest.entries) > (len(own.entries) if own else 0) + 1:
            return longest.entries[-1][2]
        if own is not None and newcomer.rank < own.entries[-1][0]:
            return own.entries[-1][2]
        raise refusal
