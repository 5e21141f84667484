"""Answers wait for a slow peer merged and bounded; load figures reach those who watch."""

from __future__ import annotations

import asyncio

import pytest

from draft_service.load import Average, BusyMeter, LoadBoard, LoadFigures
from draft_service.replies import Replies, SessionCode, SessionReply, SyncReply
from draft_service.streams import Outbox, StreamHub
from paceline.errors import CapacityError, UnavailableError
from paceline.tree import DraftTree


def reply(session: int, round_: int, token: int = 1) -> SessionReply:
    return SessionReply(session, SessionCode.OK, 10 + round_, round_, DraftTree.single(token))


async def test_rounds_that_a_slow_peer_has_not_taken_are_superseded() -> None:
    outbox = Outbox(100)
    for round_ in (1, 2, 3):
        outbox.put([reply(1, round_), reply(2, round_)])
    outbox.put([reply(2, 2)])
    waiting = await outbox.take()
    assert waiting is not None
    assert [(r.session, r.round) for r in waiting] == [(1, 3), (2, 3)]


async def test_the_answer_to_an_open_is_not_merged_away() -> None:
    outbox = Outbox(100)
    outbox.put([SessionReply(1, SessionCode.OK, 0)])
    outbox.put([reply(1, 1)])
    waiting = await outbox.take()
    assert waiting is not None
    assert [r.round for r in waiting] == [0, 1]


async def test_a_peer_that_reads_nothing_loses_its_stream() -> None:
    outbox = Outbox(100)
    outbox.put([SessionReply(session, SessionCode.UNKNOWN, 0, 1) for session in range(101)])
    with pytest.raises(CapacityError, match="101 answers"):
        await outbox.take()


async def test_an_ended_stream_gives_what_waits_and_then_nothing() -> None:
    outbox = Outbox(100)
    outbox.put([reply(1, 1)])
    outbox.end()
    assert await outbox.take() is not None
    assert await outbox.take() is None


async def test_answers_for_streams_that_are_gone_are_dropped() -> None:
    hub = StreamHub(100)
    stream, _ = hub.open_stream()
    hub.close_stream(stream)
    ticket, future = hub.new_ticket()
    future.cancel()
    replies = Replies()
    replies.add(stream, reply(1, 1))
    replies.syncs.append(SyncReply(ticket, 1, SessionCode.OK, 5))
    hub.deliver(replies)


async def test_a_lost_engine_ends_every_stream_now_and_later() -> None:
    hub = StreamHub(100)
    _, before = hub.open_stream()
    _, waiting = hub.new_ticket()
    hub.fail("the engine is gone")
    _, after = hub.open_stream()
    for outbox in (before, after):
        with pytest.raises(UnavailableError, match="gone"):
            await outbox.take()
    for future in (waiting, hub.new_ticket()[1]):
        with pytest.raises(UnavailableError, match="gone"):
            await future


def test_busy_is_the_share_of_the_last_second() -> None:
    meter = BusyMeter()
    meter.add(10.0, 10.25)
    meter.add(10.5, 10.75)
    assert meter.share(10.75) == pytest.approx(0.5)
    assert meter.share(11.125) == pytest.approx(0.375)
    assert meter.share(12.0) == 0.0


def test_an_average_starts_at_its_first_value() -> None:
    average = Average()
    assert average.value == 0.0
    average.add(4.0)
    assert average.value == 4.0
    average.add(14.0)
    assert average.value == pytest.approx(5.0)


async def test_watchers_see_each_change_and_the_fall_of_busy() -> None:
    now_s = 100.0
    board = LoadBoard(LoadFigures(0, 64), clock=lambda: now_s)
    watch = board.watch(0.001)
    assert await anext(watch) == LoadFigures(0, 64)
    waiting = asyncio.ensure_future(anext(watch))
    board.update(LoadFigures(1, 60), (99.5, 100.0))
    assert await waiting == LoadFigures(1, 60, busy=0.5)
    now_s = 102.0
    assert await anext(watch) == LoadFigures(1, 60, busy=0.0)
    await watch.aclose()
