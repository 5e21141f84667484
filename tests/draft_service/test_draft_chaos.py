"""Targets that open, send, repeat, skip, release and vanish in any order: no page is lost, no wrong tree is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import numpy as np
import pytest

from draft_service.draft_engine import DraftEngine
from draft_service.events import Event, Opening, RoundMessage, StreamEnd, SyncMessage
from draft_service.replies import Replies, SessionCode, SessionReply, each_reply
from draft_service.service import LoadedDraft
from draft_service.step_batch import StepBatch
from engine.wire import to_raw
from paceline.tree import DraftTree
from paceline.types import SamplingParams, TreeShape
from tests.support.draft_peer import Part, columns
from tests.support.tiny_draft import Alone, Prompt, TinyDraft, assert_same_tree, random_prompt

SHAPES = (TreeShape(1, 2, 3), TreeShape(3, 1, 4), TreeShape(4, 3, 10))
MAX_LEN = 90


@dataclass(slots=True)
class Sent:
    """A session as its target sees it."""

    prompt: Prompt
    held: int = 0
    round: int = 0
    asked: dict[int, tuple[int, TreeShape]] = field(default_factory=dict)  # round -> rows, shape


@dataclass(slots=True)
class WildTarget:
    """Draws its next message from a seeded generator. Incarnation and stream are one number."""

    number: int
    generator: np.random.Generator
    sessions: dict[int, Sent] = field(default_factory=dict)
    numbers: count[int] = field(default_factory=lambda: count(1))

    def message(self, tickets: count[int]) -> Event:
        choice = self.generator.random()
        if choice < 0.15 or not self.sessions:
            return self._open()
        if choice < 0.02 + 0.15:
            self.sessions.clear()
            return StreamEnd(self.number)
        session = int(self.generator.choice(list(self.sessions)))
        if choice < 0.25:
            del self.sessions[session]
            return self._rounds(releases=(session, 10_000))
        if choice < 0.5:
            return self._bulk(session, tickets)
        count = int(self.generator.integers(1, len(self.sessions) + 1))
        return self._rounds(parts=[self._ask(int(s)) for s in self.generator.permutation(list(self.sessions))[:count]])

    def answered(self, reply: SessionReply) -> tuple[Sent, TreeShape] | None:
        """Notes what the draft holds; the session and the asked shape where a tree came."""
        sent = self.sessions.get(reply.session)
        if sent is None:
            return None
        if reply.code in (SessionCode.OK, SessionCode.LENGTH_DIFFERS):
            sent.held = reply.committed_len
        else:
            del self.sessions[reply.session]
        if reply.tree is None:
            return None
        rows, shape = sent.asked[reply.round]
        assert reply.committed_len == rows
        return sent, shape

    def _open(self) -> RoundMessage:
        session = next(self.numbers)
        self.sessions[session] = Sent(random_prompt(MAX_LEN, seed=1000 * self.number + session))
        return self._rounds(openings=(Opening(session, MAX_LEN, SamplingParams()),))

    def _bulk(self, session: int, tickets: count[int]) -> SyncMessage:
        sent = self.sessions[session]
        base = self._base(sent)
        rows = sent.prompt[base : base + int(self.generator.integers(1, 20))]
        return SyncMessage(self.number, next(tickets), session, base, rows.tokens, to_raw(rows.features))

    def _ask(self, session: int) -> Part:
        sent = self.sessions[session]
        base = self._base(sent)
        stop, shape = sent.asked.get(sent.round, (-1, SHAPES[0]))
        if stop < base or self.generator.random() > 0.1:  # else the round is repeated, perhaps from another base
            sent.round += 1
            stop = min(base + int(self.generator.integers(0, 5)), MAX_LEN)
            shape = SHAPES[self.generator.integers(len(SHAPES))]
            sent.asked[sent.round] = (stop, shape)
        return Part(session, sent.round, base, sent.prompt[base:stop], shape)

    def _base(self, sent: Sent) -> int:
        skew = int(self.generator.choice([0, 0, 0, 0, 3, -2]))
        return min(max(sent.held + skew, 0), MAX_LEN - 1)

    def _rounds(
        self, *, openings: tuple[Opening, ...] = (), parts: list[Part] | None = None, releases: tuple[int, ...] = ()
    ) -> RoundMessage:
        return RoundMessage(
            stream=self.number,
            target=self.number,
            openings=openings,
            extend=StepBatch.of_columns(columns(parts)) if parts else None,
            releases=releases,
            arrived_s=0.0,
        )


def settle(engine: DraftEngine, replies: Replies) -> None:
    while engine.has_work:
        engine.step(replies.extend)
        engine.table.check()


@pytest.mark.parametrize("seed", range(3))
def test_no_page_is_lost_and_every_tree_is_that_of_its_rows(tiny: TinyDraft, alone: Alone, seed: int) -> None:
    engine = LoadedDraft.load(tiny.config(max_running_requests=6, max_bulk_rows=7, max_round_rows=9)).engine
    generator = np.random.default_rng(seed)
    targets = {number: WildTarget(number, generator) for number in (1, 2, 3)}
    tickets = count(1)
    sent_tickets, answered_tickets, trees = 0, 0, 0
    for _ in range(150):
        burst = [targets[int(generator.integers(1, 4))].message(tickets) for _ in range(generator.integers(1, 5))]
        sent_tickets += sum(isinstance(event, SyncMessage) for event in burst)
        replies = Replies()
        engine.apply(burst, replies)
        if generator.random() < 0.7:
            settle(engine, replies)
        elif engine.has_work:
            engine.step(replies.extend)
        if generator.random() < 0.2:
            engine.rest()
            assert not engine.keeps_messages
        engine.table.check()
        answered_tickets += len(replies.syncs)
        for reply in replies.syncs:
            assert reply.committed_len <= MAX_LEN
        for stream, stream_replies in replies.by_stream.items():
            for session_reply in each_reply(stream_replies):
                found = targets[stream].answered(session_reply)
                if found is not None and session_reply.tree is not None:
                    trees += 1
                    check_tree(alone, found, session_reply.committed_len, session_reply.tree)
    replies = Replies()
    settle(engine, replies)
    engine.apply([StreamEnd(number) for number in targets], replies)
    engine.table.check()
    assert engine.table.allocator.num_free == engine.table.allocator.num_pages
    assert answered_tickets + len(replies.syncs) == sent_tickets
    assert trees > 20


def check_tree(alone: Alone, found: tuple[Sent, TreeShape], rows: int, tree: DraftTree) -> None:
    sent, shape = found
    assert_same_tree(tree, alone.tree(sent.prompt[:rows], shape))
