"""Rehearsal: rounds that nobody asked for, so that a round's code is at hand when a step's result or trees come."""

from __future__ import annotations

import math

import numpy as np
import torch
from prometheus_client import CollectorRegistry

from engine.pages import PageAllocator, pages_for
from engine.pool import TargetCache
from engine.tp import TpGroup
from paceline.loopback import LONGEST_WAY_S, FarEnd, loopback_pair
from paceline.mailbox import Mailbox
from paceline.rounds import VerifyColumns
from paceline.rpc_bytes import LaneBytes
from paceline.tree import MAX_NODES
from paceline.types import Rung, SamplingParams, SpeculationDecision, TreeShape
from target_service.deadline import StepTimes, TreeDeadline
from target_service.draft_answers import DraftAnswers
from target_service.draft_asker import DraftAsker
from target_service.draft_codec import RoundReader, encode_trees
from target_service.draft_desk import DraftDesk
from target_service.draft_orders import DraftOrders
from target_service.draft_rows import RowSender
from target_service.engine_loop import EngineLoop
from target_service.events import Event, LinkEpoch, LinkUp, StreamOpened, Submitted
from target_service.halves import Halves
from target_service.loading import LoadedRank
from target_service.loop_parts import LoopParts, Outlets
from target_service.metrics import TargetMetrics
from target_service.rehearsed_step import RehearsedModel, RehearsedWalks
from target_service.request import Request, RequestKey, cost_of
from target_service.request_desk import RequestBounds, RequestDesk
from target_service.round_lane import LaneEnds, RoundLane, RoundLanes
from target_service.scheduler import Limits
from target_service.sequence import Sequence
from target_service.speculation_stats import AcceptanceWindow
from target_service.step_runner import StepRunner

_AT = LinkEpoch("rehearsal", 1)
_KEY = RequestKey(1, 0)
_INCARNATION = 1
_PROMPT_LEN, _MAX_TOKENS = 8, 32
_CONTEXT = _PROMPT_LEN + _MAX_TOKENS
_PARENTS = (-1, 0, 0, 1, 1, 2, 4, 4)
_SHAPE = TreeShape(num_steps=3, eagle_topk=2, num_draft_tokens=len(_PARENTS))


class Rehearsal:
    """A decode loop of its own with one request, whose trees come from itself by a lane over loopback. A round goes
    through the code of all rounds, the kernel's included, from a tree's bytes to the next ask's: less the device, and
    what is told of a step. Pages, requests, metrics and the draft are nobody's.

    A thread that has only looked for 4 ms takes 1.3 to 1.6 times as long for a round of one request as with rehearsals
    (`python -m bench.host_path --kinds trees --pause-ms 4 --answer-ms 1 --busy`, without and with --rehearse).
    """

    def __init__(self, rank: LoadedRank) -> None:
        """rank: 0, with a head; its tables on the device are written between its steps. Made on the event loop by a
        thread that may launch. Raises UnavailableError where there is no connection over loopback."""
        self._mailbox = Mailbox[Event]()
        self._lanes = RoundLanes(self._mailbox.watch)
        self._draft, self._lane = self._open_lane(rank.model.config.vocab_size)
        parts = _make_parts(rank)
        self._loop = EngineLoop(parts, self._mailbox, Outlets(self._send, None))
        self._num_sent = 0
        for event in (StreamOpened(_KEY.stream), LinkUp(_AT), Submitted([_request(parts)])):
            self._mailbox.put(event)
        self._loop.turn(0.0)  # its prompt, and what opens its session
        self._loop.turn(0.0)  # its ask, with rows from the pool
        self._seq: Sequence = parts.requests.sequences[_KEY]
        self._base = self._seq.committed_len
        self._forget()
        self._tree = _tree(self._seq)
        self.run()

    def run(self) -> None:
        """One round, as long as any, less the device's part. Raises UnavailableError where the connection broke."""
        self._draft.send(self._tree)
        self._loop.turn(LONGEST_WAY_S)
        self._forget()

    def close(self) -> None:
        self._lane.close()
        self._mailbox.close()
        self._draft.close()

    def _forget(self) -> None:
        """Takes the asks from the lane, and sets the request back to its first."""
        self._draft.take_in(self._num_sent)
        self._num_sent = 0
        session = self._seq.draft
        assert session is not None
        self._seq.committed_len = session.asked_len = session.sent_len = self._base
        session.round, session.is_asking = 1, True

    def _send(self, orders: dict[str, DraftOrders]) -> bool:
        self._num_sent += 1
        return bool(self._lanes.send(orders))

    def _open_lane(self, vocab_size: int) -> tuple[FarEnd, RoundLane]:
        """The draft's end, and the target's."""
        ours, theirs = loopback_pair()
        reader = RoundReader(_AT, _INCARNATION, vocab_size)
        lane = RoundLane(ours, LaneEnds(reader, self._mailbox.put, self._mailbox.watch, _INCARNATION, LaneBytes()))
        self._lanes.add(_AT.draft, lane)
        lane.start()
        return FarEnd(theirs), lane


def _make_parts(rank: LoadedRank) -> LoopParts:
    pool, page_size = rank.cache.features, rank.cache.page_size
    assert pool is not None, "without a head there are no rounds"
    allocator = PageAllocator(pages_for(_CONTEXT + MAX_NODES, page_size), page_size)
    num_slots = (allocator.num_pages + 1) * page_size
    features = torch.zeros(num_slots, pool.shape[1], dtype=pool.dtype)
    cache = TargetCache((), (), features, allocator.num_pages, page_size)
    runner = StepRunner(RehearsedModel(rank, features), cache, ops=RehearsedWalks(rank.ops), tp=TpGroup())
    runner.is_asynchronous = True  # as the one that is rehearsed for
    metrics = TargetMetrics(CollectorRegistry())
    times, window = StepTimes([1], [1.0]), AcceptanceWindow()
    rows = RowSender(runner.features)
    drafts = DraftDesk(metrics=metrics, timeout_s=math.inf, has_features=rows.has_features)
    bounds = RequestBounds(
        context_length=_CONTEXT, eos_token_ids=(), max_running_requests=1, limits=Limits(_CONTEXT, _CONTEXT)
    )
    return LoopParts(
        runner=runner,
        requests=RequestDesk(allocator, bounds, drafts=drafts, metrics=metrics),
        drafts=drafts,
        answers=DraftAnswers(drafts, metrics),
        asker=DraftAsker(drafts, rows, context_length=_CONTEXT),
        times=times,
        halves=Halves(times, enabled=False),
        window=window,
        deadline=TreeDeadline(times, window, fixed_ms=math.inf),
        metrics=metrics,
        runs_ahead=False,
    )


def _request(parts: LoopParts) -> Request:
    return Request(
        key=_KEY,
        prompt_ids=np.zeros(_PROMPT_LEN, np.int32),
        emitted_ids=np.zeros(0, np.int32),
        params=SamplingParams(max_tokens=_MAX_TOKENS, ignore_eos=True),
        decision=SpeculationDecision(_AT.draft, (Rung(0, _SHAPE),)),
        cost=cost_of(
            prompt_len=_PROMPT_LEN,
            max_tokens=_MAX_TOKENS,
            context_length=_CONTEXT,
            page_size=parts.requests.table.page_size,
        ),
    )


def _tree(seq: Sequence) -> bytes:
    """A message with the tree that the request's first ask is for."""
    session = seq.draft
    assert session is not None
    tokens = seq.tokens.item(seq.committed_len) + np.arange(len(_PARENTS), dtype=np.int32)
    columns = VerifyColumns(
        session=np.array([session.session], np.uint64),
        round=np.array([session.round]),
        base_committed_len=np.array([session.asked_len]),
        num_tokens=np.array([len(tokens)]),
        draft_token=tokens,
        parents=np.array(_PARENTS, np.int32),
    )
    return encode_trees(columns, _INCARNATION)
