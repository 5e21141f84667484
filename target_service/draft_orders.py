"""What the decode loop wants sent to a draft after a step. Values only; the link turns them into messages."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from paceline.rounds import RawTensor
from paceline.types import SamplingParams
from target_service.asks import Asks


@dataclass(frozen=True, slots=True)
class OpenOrder:
    """A session to open, for a request that may come to hold max_len tokens."""

    session: int
    max_len: int
    params: SamplingParams
    traceparent: str = ""  # of the request's span; "": not traced


@dataclass(frozen=True, slots=True, eq=False)
class SyncOrder:
    """Rows of one session for one Sync message."""

    session: int
    base_committed_len: int
    verified_id: np.ndarray  # int32 [rows]
    hidden_states: RawTensor  # [rows, feature_size]


@dataclass(slots=True)
class DraftOrders:
    """One link's orders of a step, for the connection of that epoch alone."""

    epoch: int
    opens: list[OpenOrder] = field(default_factory=list)
    releases: list[int] = field(default_factory=list)
    asks: Asks | None = None
    syncs: list[SyncOrder] = field(default_factory=list)
    reset: str = ""  # why the connection is to be given up; "" = keep it

    def own(self) -> None:
        """To be called where they are kept: from now on their features are their own."""
        if self.asks is not None:
            self.asks.own()


class OrderTray:
    """The orders that gather for each link until they are taken."""

    def __init__(self) -> None:
        self.gathered: dict[str, DraftOrders] = {}  # by address

    def of(self, address: str, epoch: int) -> DraftOrders:
        """A link's. epoch: of its connection, where it has none yet."""
        orders = self.gathered.get(address)
        if orders is None:
            orders = self.gathered[address] = DraftOrders(epoch, [], [], None, [])
        return orders

    def drop(self, address: str) -> None:
        self.gathered.pop(address, None)

    def take(self) -> dict[str, DraftOrders]:
        """By address."""
        orders, self.gathered = self.gathered, {}
        return orders
