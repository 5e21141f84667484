"""RowSender: reads fused feature rows from the pool and orders them to the drafts."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from paceline.rounds import ExtendColumns
from paceline.types import TreeShape
from target_service.draft_orders import SyncOrder
from target_service.draft_session import DraftSession
from target_service.sequence import Phase, Sequence
from target_service.step_runner import FeatureRows

MAX_RIDING_ROWS = 64  # rows that go along with an ask; more would delay every tree of the message
FLUSH_ROWS = 32  # rows that gather before an undrafted request flushes them
MAX_SYNC_BYTES = (1 << 20) - (1 << 12)  # of features in one Sync message, so that it stays below 1 MB with its ids
MAX_SYNC_INFLIGHT = 8  # unacknowledged Sync messages of one link


@dataclass(slots=True)
class _Asks:
    """The sessions of one link that ask in this step, as columns."""

    session: list[int] = field(default_factory=list)
    round: list[int] = field(default_factory=list)
    base_committed_len: list[int] = field(default_factory=list)
    shapes: list[TreeShape] = field(default_factory=list)
    verified_id: list[np.ndarray] = field(default_factory=list)
    slots: list[np.ndarray] = field(default_factory=list)


class RowSender:
    """Row j of a request is its feature at position j with the token at position j + 1."""

    def __init__(self, features: FeatureRows) -> None:
        self._features = features
        self._asks: dict[str, _Asks] = {}
        row_bytes = features.row_bytes + 5  # a token id takes up to five bytes
        self._rows_per_sync = max(1, MAX_SYNC_BYTES // row_bytes)

    @property
    def has_features(self) -> bool:
        """False without a head: then nothing can be drafted."""
        return self._features.row_bytes > 0

    def due_by_sync(self, seq: Sequence, session: DraftSession, *, proposes: bool, num_free: int) -> list[SyncOrder]:
        """At most num_free Sync messages with the rows that should not wait for an ask or not ride along with it.

        Past the prompt the newest row stays behind: an ask needs one row at least to start its tree from.
        """
        if not session.may_sync:
            return []
        in_prefill = seq.phase is Phase.PREFILL
        backlog = seq.committed_len - session.sent_len
        least = 1 if in_prefill else (MAX_RIDING_ROWS if proposes else FLUSH_ROWS) + 1
        if backlog < least:
            return []
        stop = seq.committed_len if in_prefill else seq.committed_len - 1
        orders: list[SyncOrder] = []
        while session.sent_len < stop and len(orders) < num_free:
            base = session.sent_len
            end = min(stop, base + self._rows_per_sync)
            rows = self._features.read(seq.slots(base, end))
            orders.append(SyncOrder(session.session, base, seq.tokens[base + 1 : end + 1].copy(), rows))
            session.sync(end - base)
        return orders

    def can_ride(self, seq: Sequence, session: DraftSession) -> bool:
        """Whether all rows that are left fit into the ask's own message."""
        return seq.committed_len - session.sent_len <= MAX_RIDING_ROWS

    def add_ask(self, seq: Sequence, session: DraftSession, *, base: int, shape: TreeShape) -> None:
        """The ask that the session has just opened, with the rows [base, committed_len)."""
        asks = self._asks.setdefault(session.address, _Asks())
        asks.session.append(session.session)
        asks.round.append(session.round)
        asks.base_committed_len.append(base)
        asks.shapes.append(shape)
        asks.verified_id.append(seq.tokens[base + 1 : seq.committed_len + 1])
        asks.slots.append(seq.slots(base, seq.committed_len))

    def take_asks(self) -> dict[str, ExtendColumns]:
        """The step's asks by draft; the features of one draft's are read at once."""
        asks, self._asks = self._asks, {}
        return {address: self._columns(part) for address, part in asks.items()}

    def _columns(self, asks: _Asks) -> ExtendColumns:
        size = len(asks.session)
        return ExtendColumns(
            session=np.array(asks.session, np.uint64),
            round=np.array(asks.round, np.int64),
            base_committed_len=np.array(asks.base_committed_len, np.int64),
            num_tokens=np.array([len(ids) for ids in asks.verified_id], np.int64),
            propose=np.ones(size, np.bool_),
            num_steps=np.array([shape.num_steps for shape in asks.shapes], np.int64),
            eagle_topk=np.array([shape.eagle_topk for shape in asks.shapes], np.int64),
            num_draft_tokens=np.array([shape.num_draft_tokens for shape in asks.shapes], np.int64),
            verified_id=np.concatenate(asks.verified_id),
            hidden_states=self._features.read(np.concatenate(asks.slots)),
        )
