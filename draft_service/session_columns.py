"""SessionColumns: what a round reads and writes of all sessions at once, a column each."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from draft_service.replies import SessionReply
from draft_service.rows import Rows
from engine.extend_batch import HeldSeats
from engine.pages import HeldPages, pages_for
from paceline.types import MAX_SCRATCH_NODES, SamplingParams

IDLE, WAITING, ALONE = range(3)  # nothing waits; an ask within a WaitingAsks; whatever the Session itself holds

_NO_ROUND = -1


class Facts(NamedTuple):
    """By which an ask is judged. Columns [b]."""

    arrived_len: np.ndarray
    newest_round: np.ndarray
    max_len: np.ndarray
    state: np.ndarray


class SessionColumns:
    """A seat for each session, from ``open`` to ``close``. Engine thread only.

    Columns are arrays over the seats, changed in place; those of a free seat mean nothing. A round takes what it needs
    with one index, so that its cost hardly grows with its sessions.
    """

    def __init__(self, num_seats: int, *, context_length: int, page_size: int) -> None:
        """Memory of pages that no session ever had is never touched."""
        self.facts = np.zeros((4, num_seats), np.int64)  # of which each is a row, as kernels.round_asks takes them
        self.arrived_len, self.newest_round, self.max_len, self.state = self.facts
        self.committed_len = np.zeros(num_seats, np.int64)
        self.stream = np.zeros(num_seats, np.int64)  # the round stream that opened it: its end frees the session
        self.target = np.zeros(num_seats, np.uint64)  # its incarnation
        self.held = HeldSeats(
            page_ids=np.zeros((num_seats, pages_for(context_length + MAX_SCRATCH_NODES, page_size)), np.int32),
            page_size=page_size,
            capacity=np.zeros(num_seats, np.int64),
            seed=np.zeros(num_seats, np.uint64),
            temperature=np.zeros(num_seats, np.float64),
        )
        self.last_step = np.zeros(num_seats, np.int64)  # the engine's newest step with its rows; 0: none
        self._answers = np.full(num_seats, None, np.object_)  # gives the answer to the newest round
        self._last_rows = np.full(num_seats, None, np.object_)  # gives the row before position committed_len
        self._places = np.zeros((2, num_seats), np.int64)  # what these two are asked for
        self._free = list(range(num_seats - 1, -1, -1))

    def open(self, target: int, sampling: SamplingParams, pages: HeldPages, *, stream: int, max_len: int) -> int:
        """The seat that the session has from now on. There is a free one."""
        seat = self._free.pop()
        self.facts[:, seat] = 0, _NO_ROUND, max_len, IDLE
        self.committed_len[seat] = 0
        self.stream[seat] = stream
        self.target[seat] = target
        held = self.held
        held.capacity[seat] = pages.capacity
        held.seed[seat], held.temperature[seat] = sampling.seed, sampling.temperature
        held.page_ids[seat, : len(pages.page_ids)] = pages.page_ids
        return seat

    def restart(self, seat: int) -> None:
        """As it was when it was opened."""
        self.arrived_len[seat] = self.committed_len[seat] = 0
        self.newest_round[seat] = _NO_ROUND

    def close(self, seat: int) -> None:
        self._answers[seat] = self._last_rows[seat] = None
        self.last_step[seat] = 0
        self._free.append(seat)

    @property
    def num_free(self) -> int:
        """Seats."""
        return len(self._free)

    def facts_of(self, seats: np.ndarray) -> Facts:
        """Of these sessions."""
        return Facts(*self.facts[:, seats])

    def answer(self, seat: int) -> SessionReply | None:
        """To the session's newest round, which may be asked again; None before the first."""
        give = self._answers[seat]
        return None if give is None else give(int(self._places[0, seat]))

    def keep_answers(self, seats: np.ndarray, give: Callable[[int], SessionReply]) -> None:
        """give: the answer of the i-th of the seats."""
        self._answers[seats] = give
        self._places[0, seats] = np.arange(len(seats))

    def last_row(self, seat: int) -> Rows:
        """From which a tree without new rows starts. Some row came before."""
        rows: Rows = self._last_rows[seat](int(self._places[1, seat]))
        return rows

    def keep_last_rows(self, seats: np.ndarray, give: Callable[[int], Rows]) -> None:
        """give: the last row of the i-th of the seats."""
        self._last_rows[seats] = give
        self._places[1, seats] = np.arange(len(seats))

    def disown_message(self, seat: int) -> None:
        """Keeps a copy of the last row, and lets go of the message that brought it."""
        row = self.last_row(seat).copy()
        self._last_rows[seat] = lambda _: row
