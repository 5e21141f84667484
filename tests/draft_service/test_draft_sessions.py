"""The session table: admission, ownership, and pages that always come back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from draft_service.batcher import StepLimits, pick_work
from draft_service.events import Opening, SyncMessage
from draft_service.replies import Replies, SessionCode, each_reply
from draft_service.rows import Rows
from draft_service.session import Ask
from draft_service.sessions import SessionTable
from engine.pages import PageAllocator
from paceline.rounds import RawTensor
from paceline.types import SamplingParams, TreeShape

PAGE_SIZE = 16
SHAPE = TreeShape(3, 1, 4)


class Bench:
    """A table and what it answered."""

    def __init__(self, *, num_pages: int = 64, max_sessions: int = 8) -> None:
        self.allocator = PageAllocator(num_pages, PAGE_SIZE)
        self.table = SessionTable(self.allocator, max_sessions=max_sessions, context_length=512)

    def open(self, session: int, *, target: int = 7, stream: int = 1, max_len: int = 64) -> SessionCode:
        replies = Replies()
        self.table.open(target, Opening(session, max_len, SamplingParams()), stream=stream, replies=replies)
        self.table.check()
        (reply,) = each_reply(replies.by_stream[stream])
        return reply.code

    def extend(self, session: int, base_len: int, count: int, *, round_: int = 1, target: int = 7) -> Replies:
        replies = Replies()
        ask = Ask.of(round_, base_len, _rows(count), shape=SHAPE, arrived_s=0.0)
        self.table.extend(target, session, ask, stream=1, replies=replies)
        return replies

    def sync(self, session: int, base_len: int, count: int, *, ticket: int = 1, target: int = 7) -> Replies:
        replies = Replies()
        rows = _rows(count)
        raw = RawTensor("float32", (0, 1), b"")
        self.table.sync(SyncMessage(target, ticket, session, base_len, rows.tokens, raw), rows, replies)
        return replies


def _rows(count: int) -> Rows:
    return Rows(np.zeros(count, np.int32), torch.zeros(count, 1))


def test_a_session_reserves_its_length_and_a_trees_scratch() -> None:
    bench = Bench()
    assert bench.open(1, max_len=100) is SessionCode.OK
    assert bench.allocator.num_pages - bench.allocator.num_free == -(-164 // PAGE_SIZE)


def test_an_open_past_the_pages_is_refused_and_takes_none() -> None:
    bench = Bench(num_pages=10)
    assert bench.open(1) is SessionCode.OK
    assert bench.open(2) is SessionCode.FULL
    assert bench.allocator.num_free == 2


def test_an_open_past_the_session_slots_is_refused() -> None:
    bench = Bench(max_sessions=1)
    bench.open(1)
    assert bench.open(2) is SessionCode.FULL


def test_an_open_past_the_context_is_refused() -> None:
    assert Bench().open(1, max_len=513) is SessionCode.FULL


def test_a_second_open_takes_nothing_more_and_says_what_is_held() -> None:
    bench = Bench()
    bench.open(1)
    free = bench.allocator.num_free
    assert bench.open(1) is SessionCode.OK
    assert bench.allocator.num_free == free
    assert len(bench.table) == 1


def test_two_targets_have_sessions_of_the_same_number() -> None:
    bench = Bench()
    bench.open(1, target=7)
    bench.open(1, target=8, stream=2)
    assert len(bench.table) == 2
    bench.table.release(7, 1, Replies())
    assert len(bench.table) == 1


def test_the_end_of_a_stream_frees_its_sessions_and_no_others() -> None:
    bench = Bench()
    bench.open(1, stream=1)
    bench.open(2, stream=1)
    bench.open(1, target=8, stream=2)
    bench.table.end_stream(1, Replies())
    assert len(bench.table) == 1
    bench.table.end_stream(2, Replies())
    assert bench.allocator.num_free == bench.allocator.num_pages
    bench.table.check()


def test_a_release_of_an_unknown_session_is_harmless() -> None:
    bench = Bench()
    bench.table.release(7, 1, Replies())
    bench.open(1)
    bench.table.release(7, 1, Replies())
    bench.table.release(7, 1, Replies())
    assert bench.allocator.num_free == bench.allocator.num_pages


def test_rounds_and_bulk_rows_of_an_unknown_session_are_answered() -> None:
    bench = Bench()
    (reply,) = each_reply(bench.extend(5, 0, 1).by_stream[1])
    assert (reply.session, reply.code, reply.round) == (5, SessionCode.UNKNOWN, 1)
    (sync,) = bench.sync(5, 0, 1, ticket=9).syncs
    assert (sync.ticket, sync.session, sync.code) == (9, 5, SessionCode.UNKNOWN)


@pytest.mark.parametrize("way", ["extend", "sync"])
def test_rows_past_the_reserved_length_close_the_session(way: str) -> None:
    bench = Bench()
    bench.open(1, max_len=64)
    replies = getattr(bench, way)(1, 0, 65)
    (reply,) = each_reply(replies.by_stream[1]) if way == "extend" else replies.syncs
    assert reply.code is SessionCode.FULL
    assert bench.allocator.num_free == bench.allocator.num_pages
    bench.table.check()


def test_a_release_answers_the_bulk_rows_that_still_wait() -> None:
    bench = Bench()
    bench.open(1)
    assert not bench.sync(1, 0, 4, ticket=9)
    replies = Replies()
    bench.table.release(7, 1, replies)
    assert [(sync.ticket, sync.code) for sync in replies.syncs] == [(9, SessionCode.UNKNOWN)]
    assert not bench.table.has_work


def test_a_draining_table_opens_nothing_and_keeps_what_is_open() -> None:
    bench = Bench()
    bench.open(1)
    bench.table.draining = True
    assert bench.open(2) is SessionCode.DRAINING
    assert bench.open(1) is SessionCode.OK
    assert not bench.extend(1, 0, 3)
    assert bench.table.has_work


def test_bulk_rows_of_a_step_are_bounded_and_rounds_go_first() -> None:
    bench = Bench()
    for session in (1, 2, 3):
        bench.open(session)
    bench.sync(1, 0, 40)
    bench.extend(2, 0, 30)  # a replay within a round
    bench.extend(3, 0, 2)
    picked = pick_work(bench.table.line, StepLimits(round_rows=16, bulk_rows=12))
    rounds, bulk = ([(s.key.session, len(work.rows)) for s, work in part] for part in (picked.rounds, picked.bulk))
    assert (rounds, bulk) == ([(3, 2)], [(2, 12)])


def test_rounds_beyond_a_steps_rows_wait_for_the_next() -> None:
    bench = Bench()
    for session in (1, 2, 3):
        bench.open(session)
        bench.extend(session, 0, 4)
    limits = StepLimits(round_rows=8, bulk_rows=8)
    picked = pick_work(bench.table.line, limits)
    assert [session.key.session for session, _ in picked.rounds] == [1, 2]
    for session, work in picked.rounds:
        session.commit(work)
        bench.table.settle(session)
    assert [session.key.session for session, _ in pick_work(bench.table.line, limits).rounds] == [3]
