"""DraftEngine: events in, one batch of the head a step, answers out. No threads, no messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from draft_service.batcher import PickedWork, StepLimits, pick_work
from draft_service.events import Drain, Event, RoundMessage, StreamEnd, SyncMessage
from draft_service.load import Average, LoadFigures
from draft_service.replies import Replies, SessionCode, SessionReply, SyncReply
from draft_service.rows import Rows
from draft_service.session import Ask, Session, Work
from draft_service.sessions import SessionTable
from engine.draft_batch import ExtendItem, PendingTrees, TreeSource
from engine.wire import borrow_tensor
from paceline.tree import DraftTree

_KEPT_STEPS = 8


class RoundPart(NamedTuple):
    """What a step did for one session; ``page_ids`` are those at that time."""

    session: Session
    work: Work
    page_ids: np.ndarray  # [pages] int32
    reply: SessionReply | None


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step as it went: for the metrics, the load figures and an operator's eyes."""

    step: int
    start_s: float  # on the engine's clock
    stop_s: float
    parts: tuple[RoundPart, ...]
    timings_ms: dict[str, float]


class DraftEngine:
    """Owns the sessions and the drafter. One thread only; ``apply`` all events that wait, then ``step``."""

    def __init__(
        self, drafter: TreeSource, table: SessionTable, *, limits: StepLimits, clock: Callable[[], float]
    ) -> None:
        self.table = table
        self.propose_ms = Average()
        self._drafter = drafter
        self._limits = limits
        self._clock = clock
        self._steps = 0
        self._ran: deque[tuple[int, Session]] = deque()

    @property
    def has_work(self) -> bool:
        return self.table.has_work

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
                    self._apply_rounds(event, replies)
                case SyncMessage():
                    self.table.sync(event, Rows(event.tokens, borrow_tensor(event.features)), replies)
                case StreamEnd():
                    self.table.end_stream(event.stream, replies)
                case Drain():
                    self.table.draining = True

    def step(self, hand_over: Callable[[Replies], object]) -> StepRecord:
        """Runs one batch of rows and proposals. Needs ``has_work``. hand_over gets answers as soon as they are known.

        Bulk rows are launched behind the rounds and waited for after these were answered. While the device computes,
        the sessions are brought up to date.
        """
        start_s = self._clock()
        self._steps += 1
        picked = pick_work(self.table.with_work, self._limits)
        rounds = self._drafter.begin([self._item(*pair) for pair in picked.rounds])
        bulk = self._drafter.begin([self._item(*pair) for pair in picked.bulk])
        planned_s = self._clock()
        round_asks, bulk_asks = self._commit(picked.rounds), self._commit(picked.bulk)
        parts = self._answer(picked.rounds, round_asks, rounds, hand_over)
        drafted_s = self._clock()
        parts += self._answer(picked.bulk, bulk_asks, bulk, hand_over)
        self._disown_messages()
        stop_s = self._clock()
        timings_ms = {
            "plan": (planned_s - start_s) * 1e3,
            "propose": (drafted_s - planned_s) * 1e3,
            "commit": (stop_s - drafted_s) * 1e3,
        }
        return StepRecord(self._steps, start_s, stop_s, tuple(parts), timings_ms)

    def _apply_rounds(self, message: RoundMessage, replies: Replies) -> None:
        table = self.table
        gone = set(message.releases)
        for number in message.releases:
            table.release(message.target, number, replies)
        for opening in message.openings:
            if opening.session not in gone:
                table.open(message.target, opening, stream=message.stream, replies=replies)
        if message.extend is None:
            return
        extend = message.extend
        num_rows = extend.num_tokens.tolist()
        hidden_states = borrow_tensor(extend.hidden_states)
        features = (hidden_states,) if len(num_rows) == 1 else hidden_states.split(num_rows)
        start = 0
        columns = (extend.session.tolist(), extend.round.tolist(), extend.base_committed_len.tolist(), num_rows)
        for session, round_, base_len, count, shape, part in zip(*columns, message.shapes, features, strict=True):
            stop = start + count
            rows = Rows(extend.verified_id[start:stop], part)
            ask = Ask.of(round_, base_len, rows, shape=shape, arrived_s=message.arrived_s)
            table.extend(message.target, session, ask, stream=message.stream, replies=replies)
            start = stop

    def _item(self, session: Session, work: Work) -> ExtendItem:
        shape = work.shape
        if shape is not None:
            shape = shape.within(self.table.context_length - 1 - work.base_len - len(work.rows))
        return ExtendItem(
            table=session.table,
            base_len=work.base_len,
            tokens=work.rows.tokens,
            features=work.rows.features,
            propose=None if shape is None else session.params_for(shape),
        )

    def _commit(self, picked: PickedWork) -> list[Ask | None]:
        """The ask of each session that is to be answered."""
        asks = []
        for session, work in picked:
            asks.append(session.commit(work))
            self.table.settle(session)
            session.last_step = self._steps
            self._ran.append((self._steps, session))
        return asks

    def _answer(
        self,
        picked: PickedWork,
        asks: Sequence[Ask | None],
        pending: PendingTrees,
        hand_over: Callable[[Replies], object],
    ) -> list[RoundPart]:
        """Waits for the trees."""
        trees = pending.trees()
        now_s = self._clock()
        gathered, answers = Replies(), []
        for (session, work), ask, tree in zip(picked, asks, trees, strict=True):
            answer = None
            if ask is not None:
                if tree is None and work.shape is not None:
                    tree = DraftTree.single(int(work.rows.tokens[-1]))  # no room for more before the context's end
                answer = session.answer(ask, tree)
                gathered.add(session.stream, answer)
            answers.append(answer)
            for ticket in work.tickets:
                gathered.syncs.append(SyncReply(ticket, session.key.session, SessionCode.OK, session.committed_len))
        if gathered:
            hand_over(gathered)
        for ask, answer in zip(asks, answers, strict=True):
            if ask is not None and answer is not None and answer.tree is not None:
                self.propose_ms.add((now_s - ask.arrived_s) * 1e3)
        return [
            RoundPart(session, work, session.table.page_ids, answer)
            for (session, work), answer in zip(picked, answers, strict=True)
        ]

    def _disown_messages(self) -> None:
        """A session that has not run for some steps keeps no message in memory for the sake of its last row."""
        while self._ran and self._ran[0][0] <= self._steps - _KEPT_STEPS:
            step, session = self._ran.popleft()
            if session.last_step == step:
                session.disown_message()
