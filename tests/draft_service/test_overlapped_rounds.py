"""Messages that come while a batch runs: each is answered as soon as its own batch is done."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from draft_service.batcher import StepLimits
from draft_service.draft_engine import DraftEngine
from draft_service.engine_loop import EngineLoop, Outlets
from draft_service.events import Opening, RoundMessage
from draft_service.replies import Replies, SessionReply, each_reply
from draft_service.sessions import SessionTable
from draft_service.step_batch import StepBatch
from engine.drafter import Drafter
from engine.extend_batch import ExtendBatch
from engine.pages import PageAllocator
from engine.tree_columns import TreeColumns
from engine.tree_source import PendingTrees
from kernels.backends import load_ops
from paceline.mailbox import Mailbox
from paceline.types import SamplingParams
from tests.support.draft_peer import Part, columns
from tests.support.tiny_draft import CONTEXT, Alone, TinyDraft, assert_same_tree, random_prompt
from tests.support.waiting import WAIT_S

STREAM, TARGET = 1, 7
NUM_PAGES, PAGE_SIZE = 256, 4
PROMPTS = {session: random_prompt(5 + session, seed=session) for session in (1, 2, 3, 4)}


class GatedDrafter:
    """A drafter whose batches end when they are let through."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.gate = threading.Semaphore(0)
        self.begun: queue.SimpleQueue[int] = queue.SimpleQueue()  # sessions of each batch

    def begin(self, batch: ExtendBatch) -> PendingTrees:
        self.begun.put(len(batch))
        return _Gated(self._drafter.begin(batch), self.gate)


class _Gated:
    def __init__(self, pending: PendingTrees, gate: threading.Semaphore) -> None:
        self._pending = pending
        self._gate = gate

    def is_ready(self) -> bool:
        return True

    def trees(self) -> TreeColumns:
        assert self._gate.acquire(timeout=WAIT_S)
        return self._pending.trees()


class Draft:
    """An engine thread whose batches are gated."""

    def __init__(self, tiny: TinyDraft) -> None:
        ops = load_ops("auto", "cpu")
        model = tiny.head(ops)
        self.drafter = GatedDrafter(Drafter(model, model.make_cache(NUM_PAGES, PAGE_SIZE), 512))
        table = SessionTable(PageAllocator(NUM_PAGES, PAGE_SIZE), max_sessions=8, context_length=CONTEXT)
        engine = DraftEngine(self.drafter, table, limits=StepLimits(512, 64), clock=time.perf_counter)
        self.errors: list[BaseException] = []
        self._answers: queue.SimpleQueue[Replies] = queue.SimpleQueue()
        outlets = Outlets(answer=self._answers.put, note=lambda _: None, failed=self.errors.append)
        self.loop = EngineLoop(engine, Mailbox(), outlets, device=torch.device("cpu"))

    def post(self, *, openings: tuple[Opening, ...] = (), asks: tuple[int, ...] = (), round_: int = 1) -> None:
        """One message of the target, which asks for a first tree of each of the sessions."""
        parts = [Part(session, round_, 0, PROMPTS[session]) for session in asks]
        self.loop.post(
            RoundMessage(STREAM, TARGET, openings, StepBatch.of_columns(columns(parts)) if parts else None, (), 0.0)
        )

    def begun(self) -> int:
        """Waits for the next batch. The number of its sessions."""
        return self.drafter.begun.get(timeout=WAIT_S)

    def answers(self) -> dict[int, SessionReply]:
        """Waits for the next ones."""
        replies = self._answers.get(timeout=WAIT_S)
        return {reply.session: reply for reply in each_reply(replies.by_stream[STREAM])}

    @property
    def is_silent(self) -> bool:
        return self._answers.empty()


@pytest.fixture
def draft(tiny: TinyDraft) -> Iterator[Draft]:
    """With the sessions of PROMPTS open."""
    draft = Draft(tiny)
    draft.loop.start()
    draft.post(openings=tuple(Opening(session, 64, SamplingParams()) for session in PROMPTS))
    assert len(draft.answers()) == len(PROMPTS)
    yield draft
    draft.drafter.gate.release(len(PROMPTS))  # whatever a failed test left
    draft.loop.close()
    assert not draft.errors


def test_a_message_that_comes_while_a_batch_runs_is_the_next_batch(draft: Draft, alone: Alone) -> None:
    draft.post(asks=(1, 2))
    assert draft.begun() == 2
    draft.post(asks=(3, 4))
    assert draft.is_silent
    draft.drafter.gate.release()
    first = draft.answers()
    assert draft.begun() == 2
    assert draft.is_silent, "the second batch has not ended"
    draft.drafter.gate.release()
    second = draft.answers()
    assert (first.keys(), second.keys()) == ({1, 2}, {3, 4})
    for session, reply in (first | second).items():
        assert reply.tree is not None
        assert_same_tree(reply.tree, alone.tree(PROMPTS[session]))


def test_messages_that_wait_together_are_one_batch(draft: Draft) -> None:
    draft.post(asks=(1,))
    assert draft.begun() == 1
    draft.post(asks=(2,))
    draft.post(asks=(3, 4))
    draft.drafter.gate.release(2)
    assert draft.answers().keys() == {1}
    assert draft.begun() == 3
    assert draft.answers().keys() == {2, 3, 4}
