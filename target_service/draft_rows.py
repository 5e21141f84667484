"""RowSender: gathers the feature rows that the drafts are due, and orders them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from paceline.rounds import RawTensor
from paceline.types import TreeShape
from target_service.asks import Asks
from target_service.draft_orders import DraftOrders, SyncOrder
from target_service.draft_session import DraftSession
from target_service.feature_rows import FeatureRows
from target_service.sequence import Sequence
from target_service.step_paths import StepPaths

MAX_RIDING_ROWS = 64  # rows that go along with an ask; more would delay every tree of the message
FLUSH_ROWS = 32  # rows that gather before an undrafted request flushes them
MAX_SYNC_BYTES = (1 << 20) - (1 << 12)  # of features in one Sync message, so that it stays below 1 MB with its ids


@dataclass(frozen=True, slots=True)
class _Sync:
    """One Sync message whose features are being read."""

    session: int
    base: int
    verified_id: np.ndarray  # int32 [rows]
    slots: np.ndarray  # int64 [rows]


@dataclass(slots=True)
class LateRows:
    """What one link gets once the pool's rows have come."""

    epoch: int
    asks: Asks
    rows: list[np.ndarray] = field(default_factory=list)  # the asks': int64, slots of the pool
    syncs: list[_Sync] = field(default_factory=list)

    def slots(self) -> list[np.ndarray]:
        asks = [np.concatenate(self.rows)] if self.rows else []
        return asks + [sync.slots for sync in self.syncs]


class RowSender:
    """Row j of a request is its feature at position j with the token at position j + 1.

    Asks whose rows all come from the last step are ready at once (``take_ready``). Other rows are read from the pool,
    all in one copy that ``start_read`` orders, and are taken when the next step has been launched (``take_late``).
    """

    def __init__(self, features: FeatureRows) -> None:
        self._features = features
        self.ready: dict[str, Asks] = {}  # for ``take_ready``
        self.late: dict[str, LateRows] = {}  # for ``take_late``
        row_bytes = features.row_bytes + 5  # a token id takes up to five bytes
        self._rows_per_sync = max(1, MAX_SYNC_BYTES // row_bytes)

    @property
    def has_features(self) -> bool:
        """False without a head: then nothing can be drafted."""
        return self._features.row_bytes > 0

    def sync(self, seq: Sequence, committed_len: int, *, proposes: bool, num_free: int) -> int:
        """Orders at most num_free Sync messages with the rows that should not wait for an ask or not ride along with
        it; returns how many.

        Past the prompt the newest row stays behind: an ask needs one row at least to start its tree from.
        """
        session = seq.draft
        assert session is not None
        least = 1 if not seq.is_decoding else (MAX_RIDING_ROWS if proposes else FLUSH_ROWS) + 1
        if committed_len - session.sent_len < least or not session.may_sync:
            return 0
        stop = committed_len - 1 if seq.is_decoding else committed_len
        count = 0
        while session.sent_len < stop and count < num_free:
            base = session.sent_len
            end = min(stop, base + self._rows_per_sync)
            ids = seq.tokens[base + 1 : end + 1].copy()
            self._late_of(session).syncs.append(_Sync(session.session, base, ids, seq.slots(base, end)))
            session.sync(end - base)
            count += 1
        return count

    def ask(self, seq: Sequence, base: int, *, shape: TreeShape, paths: StepPaths) -> None:
        """The ask that the request's session has just opened, with the rows [base, asked_len). paths: of the last
        step."""
        session, number = seq.draft, seq.drafted_tree
        assert session is not None
        num_rows = session.asked_len - base
        is_shown = seq.drafted_step == paths.step and paths.stop_rows[number] <= self._features.num_copied
        start = paths.starts[number] + base - paths.roots[number] if is_shown and base >= paths.roots[number] else None
        if start is not None:
            asks = self.ready.get(session.address)
            if asks is None:
                asks = self.ready[session.address] = self._asks()
            asks.rows += paths.rows[start : start + num_rows]
            asks.verified_id += paths.tokens[start : start + num_rows]
        else:
            late = self._late_of(session)
            asks = late.asks
            late.rows.append(seq.slots(base, session.asked_len))
            asks.verified_id += seq.tokens[base + 1 : session.asked_len + 1].tolist()
        asks.session.append(session.session)
        asks.round.append(session.round)
        asks.base_committed_len.append(base)
        asks.num_tokens.append(num_rows)
        asks.shapes.append(shape)

    def take_ready(self) -> dict[str, Asks]:
        """By draft, the asks whose rows are on the host. They are to be sent at once: see Asks.features."""
        ready, self.ready = self.ready, {}
        for asks in ready.values():
            asks.features = self._features.of_step(asks.rows)
        return ready

    def start_read(self) -> None:
        """Orders the copy of all rows that ``take_late`` is going to give. Before the next step is launched."""
        if self.late:
            slots = [part for late in self.late.values() for part in late.slots()]
            self._features.start_read(np.concatenate(slots))

    def take_late(self) -> dict[str, DraftOrders]:
        """By draft, what ``start_read`` ordered; waits for it."""
        if not self.late:
            return {}
        late, self.late = self.late, {}
        lengths = [len(slots) for part in late.values() for slots in part.slots()]
        features = iter(self._features.finish_read(np.cumsum([0, *lengths])))
        return {address: self._orders(part, features) for address, part in late.items()}

    def _late_of(self, session: DraftSession) -> LateRows:
        late = self.late.get(session.address)
        if late is None:
            late = self.late[session.address] = LateRows(session.epoch, self._asks())
        return late

    def _asks(self) -> Asks:
        return Asks([], [], [], [], [], [], self._features.dtype, self._features.feature_size, [], [])

    def _orders(self, late: LateRows, features: Iterator[RawTensor]) -> DraftOrders:
        """Takes from features what late.slots() asked for, in its order."""
        asks = None
        if late.rows:
            asks, late.asks.features = late.asks, [next(features).data]
        syncs = [SyncOrder(sync.session, sync.base, sync.verified_id, next(features)) for sync in late.syncs]
        return DraftOrders(late.epoch, asks=asks, syncs=syncs)
