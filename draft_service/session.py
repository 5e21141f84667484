"""One session: the rows that are held, those that wait, and the newest round's ask."""

from __future__ import annotations

from typing import NamedTuple

from draft_service.replies import SessionCode, SessionReply
from draft_service.rows import RowQueue, Rows
from engine.draft_batch import ProposeParams
from engine.pages import PageTable
from paceline.tree import DraftTree
from paceline.types import SamplingParams, TreeShape


class SessionKey(NamedTuple):
    """Session numbers are unique within one incarnation of a target."""

    target: int
    session: int


class Ask(NamedTuple):
    """One session's part of an ExtendInput: rows from base_len on, then a tree if there is a shape."""

    round: int
    base_len: int
    rows: Rows  # none: a tree at base_len
    shape: TreeShape | None
    arrived_s: float
    stop: int  # the length at which the tree is asked for: base_len and the rows

    @classmethod
    def of(cls, round_: int, base_len: int, rows: Rows, *, shape: TreeShape | None, arrived_s: float) -> Ask:
        return cls(round_, base_len, rows, shape, arrived_s, base_len + len(rows))


class Work(NamedTuple):
    """What one step does for one session. shape: the tree that the session's ask wants once the rows are in."""

    base_len: int
    rows: Rows
    tickets: tuple[int, ...]
    shape: TreeShape | None


class Session:
    """Positions [0, committed_len) are in the draft KV, [committed_len, arrived_len) wait in the queue.

    Owns its page table, which holds max_len tokens and a tree's scratch. At most one ask is open, the newest;
    an ask for rows past arrived_len is parked until bulk rows close the gap.
    """

    def __init__(
        self, key: SessionKey, *, stream: int, max_len: int, sampling: SamplingParams, table: PageTable
    ) -> None:
        self.key = key
        self.stream = stream  # the round stream that opened it: its end frees the session
        self.max_len = max_len
        self.sampling = sampling
        self.table = table
        self.committed_len = 0
        self.last_step = 0  # the engine's newest step with its rows
        self.queue = RowQueue()
        self.ask: Ask | None = None
        self._parked: Ask | None = None
        self._newest_round = -1
        self._answer: SessionReply | None = None  # to the newest round, given again when that is repeated
        self._last_rows: Rows | None = None  # up to position committed_len - 1: a tree without new rows starts there
        self._shape: TreeShape | None = None  # of the params
        self._params: ProposeParams | None = None

    @property
    def num_rounds(self) -> int:
        """Rounds that it was asked for."""
        return max(self._newest_round, 0)

    @property
    def arrived_len(self) -> int:
        return self.committed_len + self.queue.num_rows

    @property
    def has_work(self) -> bool:
        return self.ask is not None or self.queue.num_rows > 0

    @property
    def num_rows_to_run(self) -> int:
        """Rows before the open ask is served, the repeated last row included; all that wait without an ask."""
        return max(self._num_rows_due, 1)

    def extend(self, ask: Ask) -> SessionReply | None:
        """Takes a round in, or answers it at once; None: the answer comes when its rows are in the KV.

        The rows fit into max_len. A round that was answered gets the same answer again, and one whose answer is on
        its way gets that one only.
        """
        if ask.round <= self._newest_round:
            return self._repeat(ask)
        if ask.base_len == self.arrived_len:
            return self._accept(ask)
        self._parked = ask if ask.base_len > self.arrived_len else None
        return self.reply(SessionCode.LENGTH_DIFFERS, ask.round)

    def sync(self, base_len: int, rows: Rows, ticket: int) -> bool:
        """Takes bulk rows in; False where base_len is not what has arrived. The rows fit into max_len."""
        if base_len != self.arrived_len:
            return False
        self.queue.put(rows, ticket=ticket)
        return True

    def unpark(self) -> SessionReply | None:
        """Takes in the parked ask once its rows have arrived; the answer where it can no longer be served."""
        ask = self._parked
        if ask is None or ask.base_len > self.arrived_len:
            return None
        self._parked = None
        if ask.base_len == self.arrived_len:
            return self._accept(ask)
        return self.reply(SessionCode.LENGTH_DIFFERS, ask.round)

    def take(self, max_rows: int) -> Work:
        """The next rows to run, at least one and at most max_rows; none past the open ask's."""
        due = self._num_rows_due
        num_rows = min(due, max_rows)
        shape = self.ask.shape if self.ask is not None and num_rows == due else None
        if num_rows == 0:
            assert self._last_rows is not None, "an ask without rows came before any row"
            return Work(self.committed_len - 1, self._last_rows[-1:], (), shape)
        taken = self.queue.take(num_rows)
        return Work(self.committed_len, taken.rows, taken.tickets, shape)

    def commit(self, work: Work) -> Ask | None:
        """The work is in the KV before any later work. Returns the ask that this completes, for ``answer``."""
        self.committed_len = work.base_len + len(work.rows)
        self._last_rows = work.rows
        ask = self.ask
        if ask is None or self.committed_len < ask.stop:
            return None
        self.ask = None
        return ask

    def answer(self, ask: Ask, tree: DraftTree | None) -> SessionReply:
        """The answer to an ask that ``commit`` gave."""
        self._answer = SessionReply(self.key.session, SessionCode.OK, ask.stop, ask.round, tree)
        return self._answer

    def disown_message(self) -> None:
        """Keeps a copy of the last row, and lets go of the message that brought it."""
        if self._last_rows is not None:
            self._last_rows = self._last_rows[-1:].copy()

    def params_for(self, shape: TreeShape) -> ProposeParams:
        """How its tree of that shape is proposed."""
        params = self._params
        if params is None or shape is not self._shape:
            sampling = self.sampling
            self._shape = shape
            self._params = params = ProposeParams.of(shape, seed=sampling.seed, temperature=sampling.temperature)
        return params

    def reply(self, code: SessionCode, round_: int) -> SessionReply:
        """An answer without a tree, with the rows that have arrived."""
        return SessionReply(self.key.session, code, self.arrived_len, round_)

    @property
    def _num_rows_due(self) -> int:
        """Bulk rows may have come behind the open ask's: they run after it."""
        return self.queue.num_rows if self.ask is None else self.ask.stop - self.committed_len

    def _accept(self, ask: Ask) -> SessionReply | None:
        self._newest_round = ask.round
        self._parked = None
        if ask.stop > ask.base_len:
            self.queue.put(ask.rows)
        elif self.arrived_len == 0 or (ask.shape is None and self.queue.num_rows == 0):
            self.ask = None
            self._answer = self.reply(SessionCode.OK, ask.round)
            return self._answer
        self.ask = ask
        return None

    def _repeat(self, ask: Ask) -> SessionReply | None:
        if ask.round < self._newest_round:
            known = ask.stop <= self.arrived_len
            return self.reply(SessionCode.OK if known else SessionCode.LENGTH_DIFFERS, ask.round)
        return None if self.ask is not None else self._answer
