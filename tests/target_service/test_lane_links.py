"""Links with a lane: had, refused, broken, mad; whatever it is, tokens stay and nothing is left behind."""

import asyncio
import contextlib
import logging
import os
import socket
import threading

import pytest

from paceline.frames import frame
from paceline.types import SamplingParams, TreeShape
from paceline.v1 import draft_pb2
from target_service.draft_orders import DraftOrders, OpenOrder
from target_service.events import LinkDown, LinkUp, LossReason, SessionsAnswered, TreesArrived
from target_service.round_lane import RoundLanes
from tests.support.lane_reader import reading
from tests.support.scripted_draft import (
    IDENTITY,
    ScriptedDraft,
    ScriptedLane,
    info,
    linked,
    real_draft,
    scripted,
    status,
    verify,
)
from tests.support.target_peer import submission
from tests.support.tiny_target import always, random_prompt
from tests.support.waiting import WAIT_S

TREE = TreeShape(4, 3, 10)


@pytest.fixture
def lanes():
    with reading() as mailbox:
        yield RoundLanes(mailbox.watch)


def opening(epoch: int, session: int = 9) -> DraftOrders:
    return DraftOrders(epoch, opens=[OpenOrder(session, 50, SamplingParams(seed=4))])


async def test_rounds_travel_by_the_lane_once_it_stands(lanes):
    lane = ScriptedLane(frame(verify()) + frame(status()))
    async with (
        lane.open() as offer,
        scripted(ScriptedDraft(info(offer))) as address,
        linked(address, lanes) as (_, next_event),
    ):
        up = await next_event()
        assert isinstance(up, LinkUp)
        assert isinstance(await next_event(), TreesArrived)
        assert isinstance(await next_event(), SessionsAnswered)
        left = lanes.send({address: opening(up.at.epoch), "another:1": opening(1)})
        assert list(left) == ["another:1"]
        sent = await asyncio.wait_for(lane.requests.get(), WAIT_S)
        assert [(o.session, o.max_len, o.sampling_params.seed) for o in sent.open] == [(9, 50, 4)]


async def test_a_reset_and_orders_of_another_connection_are_left_for_the_link(lanes):
    lane = ScriptedLane()
    async with (
        lane.open() as offer,
        scripted(ScriptedDraft(info(offer))) as address,
        linked(address, lanes) as (_, next_event),
    ):
        up = await next_event()
        assert lanes.send({address: opening(up.at.epoch + 1)})
        whole = DraftOrders(up.at.epoch, releases=[4], reset="no answer")
        left = lanes.send({address: whole})[address]
        assert (left.releases, left.reset) == ([], "no answer")
        sent = await asyncio.wait_for(lane.requests.get(), WAIT_S)
        assert list(sent.release) == [4]


@pytest.mark.parametrize("why", ["refused", "mute", "closed"])
async def test_where_a_lane_cannot_be_had_the_stream_carries_the_rounds(monkeypatch, caplog, why, lanes):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("target_service.round_lane.CONNECT_TIMEOUT_S", 0.1 if why == "mute" else WAIT_S)
    lane = ScriptedLane(mute=True, ends=why == "closed")
    async with contextlib.AsyncExitStack() as stack:
        if why == "refused":
            with socket.create_server(("127.0.0.1", 0)) as free:
                offer = draft_pb2.RoundLane(port=free.getsockname()[1], token=lane.TOKEN)
        else:
            offer = await stack.enter_async_context(lane.open())
        draft = ScriptedDraft(info(offer))
        address = await stack.enter_async_context(scripted(draft))
        link, next_event = await stack.enter_async_context(linked(address, lanes))
        up = await next_event()
        assert isinstance(up, LinkUp)
        for part in lanes.send({address: opening(up.at.epoch)}).values():
            link.send(part)
        await asyncio.wait_for(draft.got.wait(), WAIT_S)
        assert draft.requests[1].open[0].session == 9
    assert [record.message for record in caplog.records if "rounds travel by gRPC" in record.message]


async def test_a_lane_that_could_not_be_had_is_tried_again_beside_the_stream(monkeypatch, lanes):
    monkeypatch.setattr("target_service.round_lane.CONNECT_TIMEOUT_S", 0.1)
    monkeypatch.setattr("target_service.lane_keeper.LANE_PAUSE_S", 0.01)
    lane = ScriptedLane(frame(verify()), mute=True)
    async with (
        lane.open() as offer,
        scripted(ScriptedDraft(info(offer))) as address,
        linked(address, lanes) as (_, next_event),
    ):
        up = await next_event()
        assert isinstance(up, LinkUp)
        assert lanes.send({address: opening(up.at.epoch)}), "by the stream"
        monkeypatch.setattr("target_service.round_lane.CONNECT_TIMEOUT_S", WAIT_S)
        lane.mute = False
        assert isinstance(await next_event(), TreesArrived)
        assert not lanes.send({address: opening(up.at.epoch)})
        sent = await asyncio.wait_for(lane.requests.get(), WAIT_S)
        assert [opened.session for opened in sent.open] == [9]


@pytest.mark.parametrize(
    "garbage",
    [frame(b"\xff\xff\xff random"), frame(verify(draft_token=[5, 97])), b"\xff\xff\xff\xff"],
    ids=["bytes", "vocabulary", "size"],
)
async def test_garbage_on_a_lane_ends_the_connection_and_says_so(garbage):
    lane = ScriptedLane(garbage)
    async with (
        lane.open() as offer,
        scripted(ScriptedDraft(info(offer))) as address,
        linked(address) as (_, next_event),
    ):
        assert isinstance(await next_event(), LinkUp)
        down = await next_event()
        assert (type(down), down.reason) == (LinkDown, LossReason.GARBAGE)


async def test_a_lane_that_broke_is_not_tried_again_until_the_draft_is_another():
    lane = ScriptedLane(ends=True)
    async with lane.open() as offer, contextlib.AsyncExitStack() as draft:
        address = await draft.enter_async_context(scripted(ScriptedDraft(info(offer))))
        async with linked(address) as (_, next_event):
            events = [await next_event() for _ in range(3)]
            assert [type(event) for event in events] == [LinkUp, LinkDown, LinkUp]
            assert events[1].reason is LossReason.UNREACHABLE
            assert lane.num_connections == 1
            await draft.aclose()
            assert isinstance(await next_event(), LinkDown)
            async with scripted(ScriptedDraft(info(offer, incarnation=4)), int(address.rpartition(":")[2])):
                assert isinstance(await next_event(), LinkUp)
                assert isinstance(await next_event(), LinkDown)
                assert lane.num_connections == 2


async def test_a_lane_that_breaks_in_mid_stream_changes_no_token(serve_target, tiny_target, loop):
    prompt = random_prompt(10)
    plain = loop.generate(prompt, SamplingParams(max_tokens=200, ignore_eos=True))
    async with serve_target(speculative_tree_deadline_ms=5000.0) as target, real_draft(tiny_target) as (address, _):
        router = await target.connect()
        await router.linked(always(TREE, address))
        await router.submit(submission(1, prompt, max_tokens=200, decision=always(TREE, address)))
        while len(router.got[1].tokens) < 20:
            await router.read()
        assert target.metric("vllm:spec_decode_num_drafts_total") > 0
        target.service._lanes._lanes[address]._lane._frames.shut_down()
        (got,) = await router.finish(1)
        assert got.tokens == plain
        await router.linked(always(TREE, address))
        await router.submit(submission(2, prompt, max_tokens=60, decision=always(TREE, address)))
        (got,) = await router.finish(2)
        assert got.tokens == plain[:60]
        assert got.finish.stats.speculative_rounds > 0, "by the stream"
        assert target.metric("paceline_target_draft_losses_total", draft=address, reason="unreachable") == 1


@pytest.mark.parametrize("by_lane", [True, False])
async def test_the_services_give_the_same_tokens_by_lane_and_by_stream(serve_target, tiny_target, loop, by_lane):
    prompts = [random_prompt(n, seed=n) for n in (3, 60)]
    plain = [loop.generate(prompt, SamplingParams(max_tokens=40, ignore_eos=True)) for prompt in prompts]
    async with (
        real_draft(tiny_target, disable_round_lane=not by_lane) as (address, _),
        serve_target(speculative_tree_deadline_ms=5000.0, chunked_prefill_size=16) as target,
    ):
        router = await target.connect()
        wanted = always(TREE, address)
        await router.linked(wanted)
        assert (address in target.service._lanes._lanes) is by_lane
        await router.submit(*(submission(i, p, max_tokens=40, decision=wanted) for i, p in enumerate(prompts, 1)))
        got = await router.finish(1, 2)
        assert [g.tokens for g in got] == plain
        assert [g.finish.stats.late_rounds for g in got] == [0, 0]


async def test_fifty_connections_leave_no_thread_and_no_socket(monkeypatch, tiny_target, lanes):
    monkeypatch.setattr("target_service.draft_link.FIRST_RETRY_S", 0.0)
    async with real_draft(tiny_target) as (address, draft):
        identity = IDENTITY.__class__(5, "test", draft.info.feature_id, draft.info.head_fingerprint, 97)
        monkeypatch.setattr("tests.support.scripted_draft.IDENTITY", identity)
        threads, files = 0, 0
        async with linked(address, lanes) as (link, next_event):
            for number in range(50):
                up = await next_event()
                assert isinstance(up, LinkUp)
                assert not lanes.send({address: opening(up.at.epoch)})
                assert isinstance(await next_event(), SessionsAnswered)
                if number == 9:
                    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
                link.send(DraftOrders(up.at.epoch, reset="another one"))
                assert isinstance(await next_event(), LinkDown)
            await next_event()

            def is_left() -> bool:
                now = threading.active_count(), len(os.listdir("/proc/self/fd"))
                return now[0] > threads or now[1] > files or len(draft.engine.table) > 0

            async with asyncio.timeout(WAIT_S):
                while is_left():  # noqa: ASYNC110 - threads end when they like
                    await asyncio.sleep(0.01)
