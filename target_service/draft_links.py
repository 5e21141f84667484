"""DraftLinks: one link for each draft that a router has named."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from target_service.draft_link import DraftLink, LinkIdentity
from target_service.draft_orders import DraftOrders
from target_service.link_home import LinkHome


class DraftLinks:
    """Event loop only. Owns the links until ``close``."""

    def __init__(self, identity: LinkIdentity, home: LinkHome) -> None:
        self._identity = identity
        self._home = home
        self._links: dict[str, DraftLink] = {}

    def introduce_as(self, name: str) -> None:
        """What drafts call this target, in the links that are opened from now on."""
        self._identity = replace(self._identity, name=name)

    def send(self, address: str, orders: DraftOrders) -> None:
        """Opens the link where it is new, or had given up."""
        link = self._links.get(address)
        if link is None or link.is_gone:
            self._links = {name: link for name, link in self._links.items() if not link.is_gone}
            link = self._links[address] = DraftLink(address, self._identity, self._home)
        link.send(orders)

    async def close(self) -> None:
        links, self._links = self._links, {}
        await asyncio.gather(*(link.close() for link in links.values()))
