"""DraftEngine: events in, one batch of the head a step, answers out. No threads, no messages."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from draft_service.batcher import StepLimits, pick_work
from draft_service.events import Drain, Event, RoundMessage, StreamEnd, SyncMessage
from draft_service.load import Average, LoadFigures
from draft_service.replies import Replies, SessionCode, SyncReply
from draft_service.rows import Rows
from draft_service.session import PickedWork
from draft_service.sessions import SessionTable
from draft_service.step_answers import StepAnswers
from draft_service.step_batch import NO_ROUND, StepBatch, columns_of
from draft_service.step_record import StepPart, StepRecord
from engine.extend_batch import ExtendBatch
from engine.pages import pages_for
from engine.tree_source import PendingTrees, TreeSource
from engine.wire import borrow_tensor
from kernels.round_asks import RoundLimits
from kernels.round_tables import SessionRows
from kernels.round_wire import BASE_LEN, NUM_ROWS, SEAT, SHAPES
from paceline.types import MAX_SCRATCH_NODES, tree_shape

_KEPT_STEPS = 8


class _Begun(NamedTuple):
    """A batch whose rows were launched."""

    batch: StepBatch
    works: PickedWork  # of the sessions that were looked at alone, the batch's last ones
    pending: PendingTrees


class DraftEngine:
    """Owns the sessions and the drafter. One thread only; ``apply`` all events that wait, then ``step``."""

    def __init__(
        self, drafter: TreeSource, table: SessionTable, *, limits: StepLimits, clock: Callable[[], float]
    ) -> None:
        self.table = table
        self.propose_ms = Average()
        self._drafter = drafter
        self._held = table.columns.held
        self._limits = limits
        self._round_limits = RoundLimits(limits.bulk_rows, table.context_length - 1)
        self._clock = clock
        self._steps = 0
        self._ran: deque[tuple[int, np.ndarray]] = deque()  # seats of each of the last steps

    @property
    def has_work(self) -> bool:
        return self.table.has_work

    @property
    def keeps_messages(self) -> bool:
        """Whether the last steps' messages are in memory for the sake of their sessions' last rows."""
        return bool(self._ran)

    def rest(self) -> None:
        """Nothing has come for a while: lets go of the messages."""
        self._disown_messages(0)

    def load(self) -> LoadFigures:
        """The figures that this thread knows; busy is not one of them."""
        table = self.table
        return LoadFigures(
            num_sessions=len(table),
            free_pages=table.allocator.num_free,
            draining=table.draining,
            propose_ms=round(self.propose_ms.value, 2),
        )

    def apply(self, events: Sequence[Event], replies: Replies) -> None:
        """Takes events in, in order; what can be answered without the head is answered."""
        for event in events:
            match event:
                case RoundMessage():
                    if event.openings or event.releases:
                        self._open_and_release(event, replies)
                    if event.extend is not None:
                        self.table.extend_all(event, event.extend, replies, limits=self._round_limits)
                case SyncMessage():
                    self.table.sync(event, Rows(event.tokens, borrow_tensor(event.features)), replies)
                case StreamEnd():
                    self.table.end_stream(event.stream, replies)
                case Drain():
                    self.table.draining = True

    def step(self, hand_over: Callable[[Replies], object], meanwhile: Callable[[], bool] = lambda: False) -> StepRecord:
        """Runs one batch of rows and proposals. Needs ``has_work``. hand_over gets answers as soon as they are known;
        meanwhile is called again and again while another device computes, as long as it returns True.

        Bulk rows are launched behind the rounds and waited for after these were answered. While the device computes,
        the sessions are brought up to date.
        """
        start_s = self._clock()
        self._steps += 1
        picked = pick_work(self.table.line, self._limits)
        rounds = self._begin(picked.asks, picked.rounds)
        bulk = self._begin([], picked.bulk) if picked.bulk else None
        planned_s = self._clock()
        for entry, asks in zip(picked.entries, picked.asks, strict=True):
            self.table.commit(entry, asks)
        begun = [part for part in (rounds, bulk) if part is not None]
        for part in begun:
            self._commit(part)
        parts = [self._answer(part, hand_over, meanwhile) for part in begun]
        self._disown_messages()
        stop_s = self._clock()
        timings_ms = {
            "plan": (planned_s - start_s) * 1e3,
            "propose": (parts[0].grown_s - planned_s) * 1e3,
            "answer": (parts[0].answered_s - parts[0].grown_s) * 1e3,
            "commit": (stop_s - parts[0].answered_s) * 1e3,
        }
        return StepRecord(self._steps, start_s, stop_s, tuple(parts), timings_ms)

    def _open_and_release(self, message: RoundMessage, replies: Replies) -> None:
        table, target = self.table, message.target
        gone = set(message.releases)
        for number in message.releases:
            table.release(target, number, replies)
        for opening in message.openings:
            if opening.session not in gone:
                table.open(target, opening, stream=message.stream, replies=replies)

    def _begin(self, asks: Sequence[StepBatch], works: PickedWork) -> _Begun | None:
        """Launches what was picked; None where that is nothing."""
        if len(asks) == 1 and not works:
            (batch,) = asks
        elif asks or works:
            batch = StepBatch.join([*asks, StepBatch.of_work(works)] if works else asks)
        else:
            return None
        held, table = self._held, batch.table
        columns = table[SEAT], table[BASE_LEN], table[NUM_ROWS]  # one by one: an array's iteration ends by an error
        rows = SessionRows(held.page_ids, *columns, batch.tokens, page_size=held.page_size)
        shapes = self._within_context(batch) if works else table[SHAPES:]
        return _Begun(batch, works, self._drafter.begin(ExtendBatch(held, rows, batch.features, shapes)))

    def _within_context(self, batch: StepBatch) -> np.ndarray:
        """The shapes, with no more levels than there is room for."""
        room, shapes, committed_len = self.table.context_length - 1, batch.shapes, batch.committed_len
        if committed_len.max() + shapes[0].max() <= room:
            return shapes
        asked = [tree_shape(*numbers) if numbers[0] else None for numbers in shapes.T.tolist()]
        fitted = [
            None if shape is None else shape.within(room - length)
            for shape, length in zip(asked, committed_len.tolist(), strict=True)
        ]
        return columns_of(fitted)

    def _commit(self, begun: _Begun) -> None:
        """Brings the sessions up to date."""
        table, seats = self.table, begun.batch.seat
        for session, work in begun.works:
            session.commit(work)
            table.settle(session)
        table.columns.keep_last_rows(seats, begun.batch.last_row)
        table.columns.last_step[seats] = self._steps
        self._ran.append((self._steps, seats))

    def _answer(self, begun: _Begun, hand_over: Callable[[Replies], object], meanwhile: Callable[[], bool]) -> StepPart:
        """Waits for the trees."""
        while not begun.pending.is_ready() and meanwhile():
            pass
        batch, columns = begun.batch, self.table.columns
        trees = begun.pending.trees()
        grown_s = self._clock()
        answers = StepAnswers.of(batch, trees, columns)
        replies = Replies(answers.by_stream)
        for session, work in begun.works:
            for ticket in work.tickets:
                replies.syncs.append(SyncReply(ticket, session.key.session, SessionCode.OK, session.committed_len))
        if answers.by_stream or replies.syncs:
            hand_over(replies)
        answered_s = self._clock()
        answers.keep(batch, columns)
        arrivals = Counter(batch.arrived_s[batch.round != NO_ROUND].tolist())
        for arrived_s, count in arrivals.items():
            self.propose_ms.add((grown_s - arrived_s) * 1e3, count)
        return StepPart(batch, columns.target[batch.seat], self._page_ids(batch), answers.trees, grown_s, answered_s)

    def _page_ids(self, batch: StepBatch) -> np.ndarray:
        held = self._held
        return held.page_ids[
            batch.seat, : pages_for(int(batch.committed_len.max()) + MAX_SCRATCH_NODES, held.page_size)
        ]

    def _disown_messages(self, kept_steps: int = _KEPT_STEPS) -> None:
        """A session that has not run for some steps keeps no message in memory for the sake of its last row."""
        columns = self.table.columns
        while self._ran and self._ran[0][0] <= self._steps - kept_steps:
            step, seats = self._ran.popleft()
            for seat in seats[columns.last_step[seats] == step].tolist():
                columns.disown_message(seat)
