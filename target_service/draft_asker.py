"""DraftAsker: after each step, which rows go to which draft, and who is asked for a tree."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from target_service.draft_desk import DraftDesk
from target_service.draft_orders import DraftOrders
from target_service.draft_rows import FLUSH_ROWS, MAX_RIDING_ROWS, RowSender
from target_service.sequence import Sequence
from target_service.shape_now import shape_now
from target_service.step_paths import StepPaths

MAX_SYNC_INFLIGHT = 8  # unacknowledged Sync messages of one link
_HALVES_DIFFER = 1  # from the mean, at most: one that changes halves waits for the other's turn


class Asking(NamedTuple):
    """What holds for all asks after one step."""

    now_s: float
    paths: StepPaths  # of the last step
    deadline_s: float  # how long a tree may take
    num_decoding: int  # requests past their prompt, by which a decision's rung is chosen
    is_split: bool = False  # trees of two halves are verified apart


class DraftAsker:
    """Engine thread only. Orders gather here and at the desk; the loop takes them."""

    def __init__(self, desk: DraftDesk, rows: RowSender, *, context_length: int) -> None:
        self._desk = desk
        self._rows = rows
        self._context_length = context_length

    def advance(self, asking: Asking) -> None:
        """Orders the rows that are due, and a tree for each request that has none and may speculate.

        What the last call left for ``take_late_orders`` must have been taken.
        """
        desk, rows = self._desk, self._rows
        num_decoding, context_length = asking.num_decoding, self._context_length
        asked: list[Sequence] = []
        worth_asking: dict[str, bool] = {}
        for seq in desk.followed:
            if seq.is_running and not seq.is_ahead:
                continue
            session = seq.draft or desk.attach(seq, asking.now_s)
            if session is None or not session.may_ask:
                continue
            committed_len, base = seq.committed_len, session.sent_len
            shape = None  # of one that runs ahead: its newest token is not known yet, its older rows are
            if not seq.is_running:
                shape = shape_now(seq, committed_len, num_decoding=num_decoding, context_length=context_length)
            if shape is None and seq.is_decoding and committed_len - base <= FLUSH_ROWS:
                continue
            state = desk.drafts[session.address]
            if shape is not None:
                if session.address not in worth_asking:
                    worth_asking[session.address] = state.patience.may_ask()
                shape = shape if worth_asking[session.address] else None
            num_free = MAX_SYNC_INFLIGHT - state.sync_inflight
            num_syncs = rows.sync(seq, committed_len, proposes=shape is not None, num_free=num_free)
            if num_syncs:
                state.sync_inflight += num_syncs
                state.synced_at_s = asking.now_s
                if session.sync_inflight == num_syncs:
                    session.sync_since_s = asking.now_s
                base = session.sent_len
            if session.sync_inflight and num_decoding > 1:
                continue  # the others' step would wait until the draft has these rows
            if shape is not None and committed_len - base <= MAX_RIDING_ROWS:
                deadline_s = asking.now_s + asking.deadline_s
                session.ask(committed_len, shape=shape, now_s=asking.now_s, deadline_s=deadline_s)
                rows.ask(seq, base, shape=shape, paths=asking.paths)
                asked.append(seq)
        rows.start_read()
        if asking.is_split and asked:
            _balance(asked, desk.followed)

    @property
    def has_orders(self) -> bool:
        """Whether ``take_orders`` would give any."""
        return bool(self._rows.ready) or self._desk.has_orders

    @property
    def has_late_orders(self) -> bool:
        """Whether ``take_late_orders`` would."""
        return bool(self._rows.late)

    def take_orders(self) -> dict[str, DraftOrders]:
        """What each link is to send at once, in the order open, extend, release. A new address wants a link."""
        for address, asks in self._rows.take_ready().items():
            self._desk.orders_of(address).asks = asks
        return self._desk.take_orders()

    def take_late_orders(self) -> dict[str, DraftOrders]:
        """What each link is to send after that: rows that were read from the pool. Waits for the read."""
        return self._rows.take_late()


def _balance(asked: list[Sequence], followed: Collection[Sequence]) -> None:
    """MUTATES asked, of followed: puts them into halves, each where it was, but for those that are too many there."""
    sizes = [0, 0]
    for seq in followed:
        session = seq.draft
        if session is not None and (session.is_asking or session.tree is not None or seq.is_running):
            sizes[seq.half] += 1
    most = sum(sizes) // 2 + _HALVES_DIFFER
    for seq in reversed(asked):
        if sizes[seq.half] > most:
            sizes[seq.half] -= 1
            seq.half ^= 1
            sizes[seq.half] += 1
