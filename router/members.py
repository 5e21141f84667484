"""The links to the peers of one kind, kept in step with the addresses that a watch names."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from router.discovery_watch import PeerWatch

_log = logging.getLogger(__name__)


class Link(Protocol):
    """What Members needs of a link."""

    address: str
    contacted: asyncio.Event
    over: asyncio.Event  # retired, and nothing is left of it

    async def run(self) -> None:
        """Keeps the link up until cancelled."""

    def retire(self) -> None:
        """The peer is no longer named: takes nothing new. Again is fine."""

    def reinstate(self) -> None:
        """It is named again. Again is fine."""


LinkT = TypeVar("LinkT", bound=Link)


class Members(Generic[LinkT]):
    """Owns a link for each address; one that is no longer named goes once it is over."""

    def __init__(self, watch: PeerWatch, make: Callable[[str], LinkT], *, kind: str) -> None:
        """kind: "target" or "draft", for the log."""
        self.links: tuple[LinkT, ...] = ()  # those that are over left out
        self.known = asyncio.Event()  # once the sources were looked at
        self._watch = watch
        self._make = make
        self._kind = kind
        self._by_address: dict[str, LinkT] = {}
        self._named: frozenset[str] = frozenset()

    def link(self, address: str) -> LinkT:
        """Of a peer that is in links."""
        return self._by_address[address]

    async def run(self) -> None:
        """Keeps every link up until cancelled; an error of our own in one ends all."""
        async with asyncio.TaskGroup() as group:
            async for addresses in self._watch.changes():
                self._named = frozenset(addresses)
                for address, link in self._by_address.items():
                    if address not in self._named:
                        _log.info("%s %s is no longer named; it goes once its requests are over", self._kind, address)
                        link.retire()
                for address in addresses:
                    if address in self._by_address:
                        self._by_address[address].reinstate()
                        continue
                    self._by_address[address] = self._make(address)
                    group.create_task(self._keep(address), name=f"link to {self._kind} {address}")
                self._list()
                self.known.set()

    async def contacted(self) -> None:
        """Returns once the sources were looked at, and every link that they named then has been tried."""
        await self.known.wait()
        for link in self.links:
            await link.contacted.wait()

    async def _keep(self, address: str) -> None:
        link = self._by_address[address]
        while address in self._named:
            link.reinstate()
            await _run_until_over(link)
        del self._by_address[address]
        self._list()

    def _list(self) -> None:
        self.links = tuple(self._by_address.values())


async def _run_until_over(link: Link) -> None:
    running = asyncio.create_task(link.run())
    over = asyncio.create_task(link.over.wait())
    try:
        await asyncio.wait((running, over), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
    finally:
        running.cancel()
        over.cancel()
        await asyncio.gather(running, over, return_exceptions=True)
