"""DraftSession: what a draft holds of one request, and the tree that is awaited from it."""

from __future__ import annotations

import enum
from typing import NamedTuple

from paceline.types import TreeShape
from target_service.tree_nodes import num_nodes, root_of


class TreeVerdict(enum.Enum):
    """What became of a tree that arrived."""

    USED = "used"
    LATE = "late"  # of the awaited round, but the request has gone on without it
    WRONG = "wrong"  # another length, root or size than asked: the draft is at fault


class ArrivedTree(NamedTuple):
    """One entry of a VerifyInput."""

    round: int
    base_committed_len: int
    nodes: bytes  # see ``tree_nodes``


class DraftSession:
    """One request's session with one draft. No clock, no I/O; the engine thread drives it.

    Rows [0, sent_len) were sent on the living connection; the draft said that it holds held_len. At most
    one ask is open at a time: while it is unanswered the request decodes plainly once the deadline has
    passed, and rows gather until the answer. So a draft that hangs costs a request one deadline, and what
    is under way to a draft stays bounded.
    """

    __slots__ = (
        "address",
        "answered_at_s",
        "asked_at_s",
        "asked_len",
        "deadline_s",
        "epoch",
        "held_len",
        "is_asking",
        "is_open",
        "is_rewinding",
        "round",
        "sent_len",
        "session",
        "shape",
        "sync_inflight",
        "sync_since_s",
        "tree",
    )

    def __init__(self, address: str, *, session: int, epoch: int) -> None:
        self.address = address
        self.session = session
        self.epoch = epoch  # of the connection that the session lives on
        self.is_open = False  # the draft said so
        self.sent_len = 0
        self.held_len = 0
        self.sync_inflight = 0  # Sync messages without an acknowledgement
        self.sync_since_s = 0.0  # when the first of them left, or one was last acknowledged
        self.is_rewinding = False  # those under way will be refused: nothing is sent before they are all answered
        self.round = 0
        self.is_asking = False
        self.asked_len = 0  # committed_len of the ask
        self.asked_at_s = 0.0
        self.answered_at_s = 0.0  # when the last tree that was of use came
        self.deadline_s = 0.0
        self.shape: TreeShape | None = None  # of the ask
        self.tree: bytes | None = None  # its nodes

    @property
    def may_sync(self) -> bool:
        """Rows may go by Sync: the session exists, and nothing under way on the other stream can be overtaken."""
        return self.is_open and not self.is_asking and not self.is_rewinding

    @property
    def may_ask(self) -> bool:
        return not self.is_asking and self.tree is None and not self.is_rewinding

    def is_due_since(self, time_s: float) -> bool:
        """An answer is due to what was asked, or sent by Sync, before that time."""
        asked = self.is_asking and self.asked_at_s < time_s
        return asked or (self.sync_inflight > 0 and self.sync_since_s < time_s)

    def sync(self, num_rows: int) -> None:
        """Rows [sent_len, sent_len + num_rows) go out in one Sync message."""
        self.sent_len += num_rows
        self.sync_inflight += 1

    def ask(self, committed_len: int, *, shape: TreeShape, now_s: float, deadline_s: float) -> None:
        """Opens the next round: all rows up to committed_len count as sent.

        An ask that is repeated at the same length keeps the first one's deadline: a draft that answers at once and
        never right costs a round no more than a silent one.
        """
        if committed_len != self.asked_len:
            self.deadline_s = deadline_s
        self.round += 1
        self.sent_len = committed_len
        self.is_asking = True
        self.asked_len = committed_len
        self.asked_at_s = now_s
        self.shape = shape
        self.tree = None

    def on_tree(self, arrived: ArrivedTree, *, committed_len: int, root_token: int) -> TreeVerdict:
        """Takes a tree in if it answers the open ask; keeps it if the request still stands where it asked."""
        if not self.is_asking or arrived.round < self.round:
            return TreeVerdict.LATE
        if arrived.round > self.round:
            return TreeVerdict.WRONG
        self.is_asking = False
        assert self.shape is not None
        if arrived.base_committed_len != self.asked_len or num_nodes(arrived.nodes) > self.shape.num_draft_tokens:
            return TreeVerdict.WRONG
        self.held_len = self.asked_len
        if committed_len != self.asked_len:
            return TreeVerdict.LATE
        if root_of(arrived.nodes) != root_token:
            return TreeVerdict.WRONG
        self.tree = arrived.nodes
        return TreeVerdict.USED

    def on_held(self, held_len: int) -> None:
        """The draft acknowledged held_len rows, by either stream."""
        self.is_open = True
        self.held_len = max(self.held_len, held_len)

    def on_extended(self, round_number: int, held_len: int) -> None:
        """The draft took a round's rows and has no tree for it."""
        self.on_held(held_len)
        if round_number == self.round:
            self.is_asking = False

    def on_length_differs(self, round_number: int, held_len: int) -> None:
        """The draft refused a round's base: rows are sent again from held_len.

        Not where the answer is out of date, or where rows that are under way or acknowledged cover the gap:
        the draft parks the ask and serves it when they come.
        """
        if self.is_asking and round_number == self.round and self.sync_inflight == 0 and self.held_len <= held_len:
            self._rewind(held_len)

    def on_synced(self, held_len: int, *, ok: bool) -> None:
        """One Sync message was acknowledged; not ok: it did not join up, and the rest under way will not either."""
        self.sync_inflight -= 1
        if ok:
            self.on_held(held_len)
        else:
            self._rewind(held_len)
            self.is_rewinding = True
        if self.sync_inflight == 0:
            self.is_rewinding = False

    def is_waiting(self, now_s: float) -> bool:
        """The request holds still for a tree, and the deadline has not passed."""
        return self.is_asking and now_s < self.deadline_s

    def take_tree(self) -> bytes | None:
        """The tree for the next step, at most once."""
        tree, self.tree = self.tree, None
        return tree

    def _rewind(self, held_len: int) -> None:
        self.held_len = held_len
        self.sent_len = held_len
        self.is_asking = False
        self.tree = None
