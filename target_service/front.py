"""Front: the event loop's end of the engine thread. Hands every emission to those it is for."""

from __future__ import annotations

import asyncio

from target_service.draft_links import DraftLinks
from target_service.emission import Emission
from target_service.latest import Latest
from target_service.load import Load
from target_service.mailbox import Mailbox
from target_service.round_record import RoundRecord
from target_service.router_streams import RouterStreams


class Front:
    """Event loop only."""

    def __init__(self, mailbox: Mailbox, links: DraftLinks) -> None:
        self.mailbox = mailbox
        self.streams = RouterStreams(mailbox)
        self.load: Load | None = None
        self.rounds: Latest[RoundRecord] = Latest()
        self.drained = asyncio.Event()
        self._links = links

    def deliver(self, emission: Emission) -> None:
        """One call a turn of the decode loop."""
        for address, orders in emission.orders.items():
            self._links.send(address, orders)
        self.streams.push(emission.streams)
        if emission.load is not None:
            self.load = emission.load
        if emission.round is not None:
            self.rounds.set(emission.round)
        if emission.drained:
            self.drained.set()
