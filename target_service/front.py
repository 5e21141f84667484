"""Front: the event loop's end of the engine thread. Hands every emission to those it is for."""

from __future__ import annotations

import asyncio

from paceline.mailbox import Mailbox
from target_service.draft_links import DraftLinks
from target_service.draft_orders import DraftOrders
from target_service.emission import Emission
from target_service.events import Event
from target_service.latest import Latest
from target_service.load import Load
from target_service.round_record import RoundRecord
from target_service.router_streams import RouterStreams


class Front:
    """Event loop only."""

    def __init__(self, mailbox: Mailbox[Event], links: DraftLinks) -> None:
        self.mailbox = mailbox
        self.streams = RouterStreams(mailbox)
        self.load: Load | None = None
        self.rounds: Latest[RoundRecord] = Latest()
        self.last_round: RoundRecord | None = None  # of decoding requests, once there was one
        self.drained = asyncio.Event()
        self._links = links

    def send_orders(self, orders: dict[str, DraftOrders]) -> None:
        """What each draft is to be sent, by address."""
        for address, part in orders.items():
            self._links.send(address, part)

    def deliver(self, emission: Emission) -> None:
        """At most one call a turn of the decode loop."""
        self.streams.push(emission.streams)
        if emission.load is not None:
            self.load = emission.load
        if emission.round is not None:
            self.rounds.set(emission.round)
            if emission.round.num_decoding or self.last_round is None:
                self.last_round = emission.round
        if emission.drained:
            self.drained.set()
