"""One session's rounds: what is taken in, parked, refused, and answered again."""

from __future__ import annotations

import numpy as np
import torch

from draft_service.replies import SessionCode, SessionReply
from draft_service.rows import RowQueue, Rows
from draft_service.session import Ask, Session, SessionKey, Work
from draft_service.session_columns import SessionColumns
from draft_service.step_answers import StepAnswers
from draft_service.step_batch import StepBatch
from engine.pages import PageAllocator, PageTable
from engine.tree_columns import TreeColumns
from paceline.tree import DraftTree
from paceline.types import SamplingParams, TreeShape

SHAPE = TreeShape(3, 1, 4)


def rows(start: int, count: int) -> Rows:
    return Rows(np.arange(start, start + count, dtype=np.int32), torch.arange(start, start + count).float()[:, None])


def ask(round_: int, base_len: int, count: int, shape: TreeShape | None = SHAPE) -> Ask:
    return Ask.of(round_, base_len, rows(base_len, count), shape=shape, arrived_s=0.0)


def session() -> Session:
    table = PageTable(PageAllocator(16, 16))
    table.reserve(164)
    columns = SessionColumns(2, context_length=200, page_size=16)
    columns.open(7, SamplingParams(), table, stream=1, max_len=100)
    seat = columns.open(7, SamplingParams(), table, stream=1, max_len=100)
    return Session(SessionKey(7, 1), seat=seat, columns=columns, table=table)


def serve(session: Session, max_rows: int = 100) -> DraftTree | None:
    """Runs one step's work; the tree is a chain that starts at the last row's token."""
    work = session.take(max_rows)
    if work.shape is None:
        commit(session, work)
        return None
    return answer(session, work, DraftTree.chain([int(work.rows.tokens[-1]), 500])).tree


def commit(session: Session, work: Work) -> StepBatch:
    batch = StepBatch.of_work([(session, work)])
    session.commit(work)
    session.columns.keep_last_rows(batch.seat, batch.last_row)
    return batch


def answer(session: Session, work: Work, tree: DraftTree) -> SessionReply:
    batch = commit(session, work)
    answers = StepAnswers.of(batch, TreeColumns.of([tree]), session.columns)
    answers.keep(batch, session.columns)
    (reply,) = answers.trees.each()
    return reply


def test_a_queue_gives_rows_in_order_across_messages() -> None:
    queue = RowQueue()
    queue.put(rows(0, 3), ticket=11)
    queue.put(rows(3, 4))
    queue.put(rows(7, 2), ticket=12)
    first = queue.take(5)
    assert first.rows.tokens.tolist() == [0, 1, 2, 3, 4]
    assert first.rows.features[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert first.tickets == (11,)
    assert queue.tickets() == [12]
    assert queue.take(4).tickets == (12,)
    assert queue.num_rows == 0


def test_a_round_is_answered_once_its_rows_are_in() -> None:
    s = session()
    assert s.extend(ask(1, 0, 5)) is None
    assert serve(s, max_rows=3) is None
    assert s.committed_len == 3
    tree = serve(s, max_rows=3)
    assert tree is not None
    assert tree.tokens[0] == 4
    assert not s.has_work


def test_a_repeated_round_gets_the_same_reply_whatever_its_base() -> None:
    s = session()
    s.extend(ask(1, 0, 5))
    tree = serve(s)
    again = s.extend(ask(1, 0, 5))
    assert again is not None
    assert again.tree is not None and tree is not None
    assert again.tree.tokens.tolist() == tree.tokens.tolist()
    assert again.committed_len == 5
    assert not s.has_work


def test_a_round_that_is_on_its_way_is_not_answered_twice() -> None:
    s = session()
    s.extend(ask(1, 0, 5))
    assert s.extend(ask(1, 0, 5)) is None
    assert s.arrived_len == 5


def test_only_the_newest_round_proposes() -> None:
    s = session()
    s.extend(ask(1, 0, 5))
    s.extend(ask(2, 5, 2))
    work = s.take(100)
    assert work.rows.tokens.tolist() == [0, 1, 2, 3, 4, 5, 6]
    reply = answer(s, work, DraftTree.single(6))
    assert (reply.round, reply.committed_len) == (2, 7)


def test_an_older_round_gets_no_tree() -> None:
    s = session()
    s.extend(ask(2, 0, 5))
    serve(s)
    reply = s.extend(ask(1, 0, 3))
    assert reply is not None
    assert (reply.code, reply.committed_len, reply.tree) == (SessionCode.OK, 5, None)


def test_a_round_past_the_held_rows_is_answered_with_their_number_and_parked() -> None:
    s = session()
    reply = s.extend(ask(1, 4, 2))
    assert reply is not None
    assert (reply.code, reply.committed_len, reply.round) == (SessionCode.LENGTH_DIFFERS, 0, 1)
    assert not s.has_work
    assert s.sync(0, rows(0, 4), ticket=1)
    assert s.unpark() is None
    assert serve(s) is not None
    assert s.committed_len == 6


def test_rows_that_overshoot_a_parked_round_end_it() -> None:
    s = session()
    s.extend(ask(1, 4, 2))
    s.sync(0, rows(0, 5), ticket=1)
    reply = s.unpark()
    assert reply is not None
    assert (reply.code, reply.committed_len) == (SessionCode.LENGTH_DIFFERS, 5)
    assert s.ask is None


def test_the_newest_parked_round_is_the_one_that_is_served() -> None:
    s = session()
    s.extend(ask(1, 4, 2))
    s.extend(ask(2, 6, 1))
    s.sync(0, rows(0, 4), ticket=1)
    assert s.unpark() is None
    assert s.ask is None
    s.sync(4, rows(4, 2), ticket=2)
    assert s.unpark() is None
    assert s.ask is not None
    assert s.ask.round == 2


def test_a_round_behind_the_held_rows_is_refused() -> None:
    s = session()
    s.extend(ask(1, 0, 5))
    serve(s)
    reply = s.extend(ask(2, 3, 2))
    assert reply is not None
    assert (reply.code, reply.committed_len) == (SessionCode.LENGTH_DIFFERS, 5)
    assert s.extend(ask(3, 5, 1)) is None


def test_a_refused_round_may_come_again_with_the_right_base() -> None:
    s = session()
    s.extend(ask(1, 4, 2))
    assert s.extend(ask(1, 0, 6)) is None
    assert serve(s) is not None


def test_a_tree_can_be_asked_for_again_without_rows() -> None:
    s = session()
    s.extend(ask(1, 0, 5))
    serve(s)
    assert s.extend(ask(2, 5, 0)) is None
    work = s.take(100)
    assert work.base_len == 4
    assert work.rows.tokens.tolist() == [4]
    reply = answer(s, work, DraftTree.single(4))
    assert (reply.round, reply.committed_len) == (2, 5)


def test_no_rows_at_all_give_an_acknowledgement_without_a_tree() -> None:
    s = session()
    reply = s.extend(ask(1, 0, 0))
    assert reply is not None
    assert (reply.code, reply.committed_len, reply.tree) == (SessionCode.OK, 0, None)
    assert s.extend(ask(1, 0, 0)) is reply


def test_bulk_rows_that_do_not_join_up_are_refused() -> None:
    s = session()
    assert not s.sync(1, rows(1, 2), ticket=1)
    assert s.sync(0, rows(0, 2), ticket=2)
    assert not s.sync(0, rows(0, 2), ticket=3)
    assert s.take(100).tickets == (2,)


def test_a_tree_stands_where_it_was_asked_for_though_bulk_rows_came_behind() -> None:
    s = session()
    s.extend(ask(1, 0, 5))
    assert s.sync(5, rows(5, 3), ticket=1)
    reply = answer(s, s.take(100), DraftTree.single(4))
    assert (reply.round, reply.committed_len) == (1, 5)
    assert s.take(100).rows.tokens.tolist() == [5, 6, 7]


def test_a_tree_without_new_rows_stands_where_it_was_asked_for_too() -> None:
    s = session()
    s.extend(ask(1, 0, 5))
    serve(s)
    s.extend(ask(2, 5, 0))
    s.sync(5, rows(5, 3), ticket=1)
    work = s.take(100)
    assert work.base_len == 4
    reply = answer(s, work, DraftTree.single(4))
    assert (reply.round, reply.committed_len) == (2, 5)
    assert s.has_work


def test_a_tree_without_new_rows_starts_from_the_last_row_after_its_message_is_gone() -> None:
    s = session()
    s.extend(ask(1, 0, 5))
    serve(s)
    s.columns.disown_message(s.seat)
    s.extend(ask(2, 5, 0))
    work = s.take(100)
    assert (work.base_len, work.rows.tokens.tolist(), work.rows.features.tolist()) == (4, [4], [[4.0]])


def test_each_sessions_last_row_is_its_own_among_the_parts_that_a_batch_came_in() -> None:
    first, second = session(), session()
    first.extend(ask(1, 0, 3))
    second.extend(ask(1, 0, 5))
    batch = StepBatch.of_work([(first, first.take(100)), (second, second.take(100))])
    assert len(batch.features) == 2
    for place, row in enumerate((2, 4)):
        last = batch.last_row(place)
        assert (last.tokens.tolist(), last.features.tolist()) == ([row], [[float(row)]])
