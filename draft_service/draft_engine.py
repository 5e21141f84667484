"""DraftEngine: events in, one batch of the head a step, answers out. No threads, no messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from draft_service.batcher import StepLimits, pick_work
from draft_service.events import Drain, Event, RoundMessage, StreamEnd, SyncMessage
from draft_service.load import Average, LoadFigures
from draft_service.replies import Replies, SessionCode, SessionReply, SyncReply
from draft_service.rows import Rows
from draft_service.session import Ask, Session, Work
from draft_service.sessions import SessionTable
from engine.device_drafter import DeviceDrafter
from engine.drafter import Drafter, ExtendItem, ProposeParams
from engine.wire import to_tensor
from paceline.tree import DraftTree
from paceline.types import TreeShape


@dataclass(frozen=True, slots=True)
class RoundPart:
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
        self, drafter: Drafter | DeviceDrafter, table: SessionTable, *, limits: StepLimits, clock: Callable[[], float]
    ) -> None:
        self.table = table
        self.propose_ms = Average()
        self._drafter = drafter
        self._limits = limits
        self._clock = clock
        self._steps = 0

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
                    self.table.sync(event, Rows(event.tokens, to_tensor(event.features)), replies)
                case StreamEnd():
                    self.table.end_stream(event.stream, replies)
                case Drain():
                    self.table.draining = True

    def step(self, replies: Replies) -> StepRecord:
        """Runs one batch of rows and proposals and commits it. Needs ``has_work``."""
        start_s = self._clock()
        picked = pick_work(self.table.with_work, self._limits)
        items = [self._item(session, work) for session, work in picked]
        planned_s = self._clock()
        trees = self._drafter.extend(items)
        drafted_s = self._clock()
        parts = []
        for (session, work), tree in zip(picked, trees, strict=True):
            parts.append(self._commit(session, work, tree, replies))
        stop_s = self._clock()
        self._steps += 1
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
        features = to_tensor(extend.hidden_states)
        start = 0
        columns = (extend.session, extend.round, extend.base_committed_len, extend.num_tokens)
        numbers = zip(*(column.tolist() for column in columns), message.shapes, strict=True)
        for session, round_, base_len, num_rows, shape in numbers:
            stop = start + num_rows
            rows = Rows(extend.verified_id[start:stop], features[start:stop])
            ask = Ask(round_, base_len, rows, shape, message.arrived_s)
            table.extend(message.target, session, ask, stream=message.stream, replies=replies)
            start = stop

    def _item(self, session: Session, work: Work) -> ExtendItem:
        stop = work.base_len + len(work.rows)
        shape = None if work.shape is None else _fit(work.shape, self.table.context_length - 1 - stop)
        sampling = session.sampling
        propose = None
        if shape is not None:
            propose = ProposeParams(
                num_steps=shape.num_steps,
                eagle_topk=shape.eagle_topk,
                num_draft_tokens=shape.num_draft_tokens,
                seed=sampling.seed,
                temperature=sampling.temperature,
            )
        return ExtendItem(
            table=session.table,
            base_len=work.base_len,
            tokens=work.rows.tokens,
            features=work.rows.features,
            propose=propose,
        )

    def _commit(self, session: Session, work: Work, tree: DraftTree | None, replies: Replies) -> RoundPart:
        ask = session.ask
        if tree is None and work.shape is not None:
            tree = DraftTree.single(int(work.rows.tokens[-1]))  # no room for more before the context's end
        reply = session.commit(work, tree)
        for ticket in work.tickets:
            replies.syncs.append(SyncReply(ticket, session.key.session, SessionCode.OK, session.committed_len))
        if reply is not None:
            replies.add(session.stream, reply)
            if ask is not None and tree is not None:
                self.propose_ms.add((self._clock() - ask.arrived_s) * 1e3)
        self.table.settle(session)
        return RoundPart(session, work, session.table.page_ids, reply)


def _fit(shape: TreeShape, room: int) -> TreeShape | None:
    """The shape with its levels cut to ``room``, the positions before the context's end; None where there are none."""
    num_steps = min(shape.num_steps, room)
    if num_steps == shape.num_steps:
        return shape
    if num_steps < 1:
        return None
    num_nodes = min(shape.num_draft_tokens, TreeShape.max_nodes(num_steps, shape.eagle_topk))
    return TreeShape(num_steps, shape.eagle_topk, num_nodes)
