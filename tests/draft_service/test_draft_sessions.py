"""The session table: admission, ownership, and pages that always come back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from draft_service.batcher import StepLimits, pick_work
from draft_service.events import Opening, RoundMessage, SyncMessage
from draft_service.replies import Replies, SessionCode, each_reply
from draft_service.rows import Rows
from draft_service.session import Ask
from draft_service.sessions import SessionTable
from draft_service.step_batch import StepBatch
from engine.pages import PageAllocator
from kernels import round_asks
from kernels.round_asks import RoundLimits, take_round
from kernels.round_wire import NUM_TABLE_ROWS
from paceline.rounds import ExtendColumns, RawTensor
from paceline.types import SamplingParams, TreeShape
from tests.support.extension import needs_extension

PAGE_SIZE = 16
SHAPE = TreeShape(3, 1, 4)


class Bench:
    """A table and what it answered."""

    def __init__(self, *, num_pages: int = 64, max_sessions: int = 8, context_length: int = 512) -> None:
        self.allocator = PageAllocator(num_pages, PAGE_SIZE)
        self.table = SessionTable(self.allocator, max_sessions=max_sessions, context_length=context_length)

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


def _random_round(rng: np.random.Generator, table: SessionTable) -> RoundMessage:
    """Of sessions that are open or not, mostly once each; most of them bring their next rows for their next round."""
    numbers = rng.permutation(8)[: rng.integers(1, 7)].astype(np.uint64)
    if rng.random() < 0.1:
        numbers[-1] = numbers[0]
    seat = np.array([table.seats.get(7, {}).get(number, -1) for number in numbers.tolist()])
    due, newest = table.columns.arrived_len[seat], table.columns.newest_round[seat]
    odd = rng.random((4, len(numbers))) < 0.05
    num_rows = np.where(odd[0], rng.integers(0, 9, len(numbers)), rng.integers(1, 5, len(numbers)))
    rows = int(num_rows.sum())
    columns = ExtendColumns(
        session=numbers,
        round=np.maximum(newest, 0) + np.where(odd[1], 0, 1),
        base_committed_len=np.maximum(due + np.where(odd[2], rng.choice([-1, 2]), 0), 0),
        num_tokens=num_rows,
        propose=~odd[3],
        num_steps=np.full(len(numbers), 3),
        eagle_topk=np.full(len(numbers), 1),
        num_draft_tokens=np.full(len(numbers), 4),
        min_path_permille=np.full(len(numbers), 0),
        verified_id=np.zeros(rows, np.int32),
        hidden_states=RawTensor("float32", (rows, 1), bytes(4 * rows)),
    )
    return RoundMessage(1, 7, (), StepBatch.of_columns(columns), (), 1.5)


def _run(table: SessionTable) -> None:
    """All that waits, as a step does."""
    picked = pick_work(table.line, StepLimits(512, 64))
    for entry, asks in zip(picked.entries, picked.asks, strict=True):
        table.commit(entry, asks)
        table.columns.keep_last_rows(asks.seat, lambda _: _rows(1))
    for session, work in [*picked.rounds, *picked.bulk]:
        session.commit(work)
        table.columns.keep_last_rows(np.array([session.seat]), lambda _: _rows(1))
        table.settle(session)


def test_a_round_is_taken_in_alike_with_and_without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some sessions come to their context's end."""
    rng = np.random.default_rng(5)
    by_call, by_arrays = (Bench(num_pages=256, context_length=400) for _ in range(2))
    for session in range(6):
        assert by_call.open(session, max_len=400) is by_arrays.open(session, max_len=400)
    for _ in range(400):
        message = _random_round(rng, by_call.table)
        assert message.extend is not None
        answers, tables = [], []
        for bench, native in ((by_call, round_asks.EXTENSION), (by_arrays, None)):
            extend = replace(message.extend, table=message.extend.table.copy())
            replies = Replies()
            with monkeypatch.context() as patch:
                patch.setattr(round_asks, "EXTENSION", native)
                bench.table.extend_all(message, extend, replies, limits=RoundLimits(5, 399))
            answers.append(list(each_reply(replies.by_stream.get(1, []))))
            tables.append(extend.table.tolist())
        assert answers[0] == answers[1] and tables[0] == tables[1]
        seats = np.arange(6)
        assert [column.tolist() for column in by_call.table.columns.facts_of(seats)] == [
            column.tolist() for column in by_arrays.table.columns.facts_of(seats)
        ]
        assert len(by_call.table.line) == len(by_arrays.table.line)
        if rng.random() < 0.8:
            _run(by_call.table)
            _run(by_arrays.table)
    assert 0 < len(by_call.table) == len(by_arrays.table) < 6


@needs_extension
@pytest.mark.parametrize(
    ("facts", "seats", "table"),
    [
        (np.zeros((4, 2), np.int64), {}, np.zeros((NUM_TABLE_ROWS - 1, 1), np.int64)),
        (np.zeros((4, 2), np.int64), {}, np.zeros((NUM_TABLE_ROWS, 1), np.int32)),
        (np.zeros((3, 2), np.int64), {}, np.zeros((NUM_TABLE_ROWS, 1), np.int64)),
        (np.zeros((4, 2), np.int64), [], np.zeros((NUM_TABLE_ROWS, 1), np.int64)),
        (np.zeros((4, 2), np.int64), {0: "seat"}, np.zeros((NUM_TABLE_ROWS, 1), np.int64)),
        (np.zeros((4, 2), np.int64), {}, np.broadcast_to(np.int64(0), (NUM_TABLE_ROWS, 1))),
    ],
)
def test_what_is_no_round_is_refused_by_the_extension(facts, seats, table) -> None:
    with pytest.raises((TypeError, ValueError, BufferError)):
        take_round(facts, seats, table, arrived_s=0.0, limits=RoundLimits(5, 100))
    assert not facts.any()


@needs_extension
@pytest.mark.parametrize("seat", [-1, 2, 2**40])
def test_a_seat_that_is_none_takes_no_round(seat: int) -> None:
    facts, table = np.zeros((4, 2), np.int64), np.ones((NUM_TABLE_ROWS, 1), np.int64)
    assert not take_round(facts, {1: seat}, table, arrived_s=0.0, limits=RoundLimits(5, 100))
    assert not facts.any()
