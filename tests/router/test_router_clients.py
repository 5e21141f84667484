"""Clients that cancel, read slowly, or ask a router that is about to stop."""

from __future__ import annotations

import asyncio
import random

import grpc

from paceline.v1 import common_pb2, router_pb2
from router import stream_pacer
from tests.router.conftest import soon


def nothing_left(info: router_pb2.RouterServiceGetInfoResponse) -> bool:
    return info.queued_requests == 0 and info.targets[0].running_requests == 0


async def test_a_cancelled_call_cancels_its_request_on_the_target(make_target, make_rig) -> None:
    target = await make_target()
    rig = await make_rig([target])
    stream = await target.next_stream()
    call = rig.generate()
    submission = await stream.next_submission()
    stream.tokens(submission.request, 0, [9])
    await call.read()
    call.cancel()
    assert await soon(stream.cancels.get()) == submission.request
    await rig.info_when(nothing_left)
    assert rig.router.dispatcher.num_live == 0


async def test_tokens_of_a_cancelled_request_are_passed_over(make_target, make_rig, collect) -> None:
    target = await make_target()
    rig = await make_rig([target])
    stream = await target.next_stream()
    gone = rig.generate()
    first = await stream.next_submission()
    gone.cancel()
    await soon(stream.cancels.get())
    call = rig.generate(max_tokens=1)
    second = await stream.next_submission()
    stream.tokens(first.request, 0, [7])
    stream.finish(first.request, reason=common_pb2.FINISH_REASON_CANCELLED)
    stream.tokens(second.request, 0, [9])
    stream.finish(second.request)
    assert (await collect(call))[-1].usage.completion_tokens == 1


async def test_a_queued_request_that_is_cancelled_leaves_the_queue(make_target, make_rig) -> None:
    target = await make_target(slots=0)
    rig = await make_rig([target])
    stream = await target.next_stream()
    call = rig.generate()
    await rig.info_when(lambda info: info.queued_requests == 1)
    call.cancel()
    await rig.info_when(nothing_left)
    stream.grant(1)
    other = rig.generate(request_id="other")
    assert (await stream.next_submission()).request_id == "other"
    other.cancel()


async def test_after_a_hundred_requests_with_random_cancels_nothing_is_left(make_target, make_rig) -> None:
    generator = random.Random(1)
    target = await make_target(slots=8)
    rig = await make_rig([target])
    stream = await target.next_stream()
    ended = asyncio.Event()

    async def serve() -> None:
        """Gives each request one token a message, four in all, and its slot back at its end."""
        granted = 8
        while not ended.is_set():
            for submission in await stream.submits.get():
                for offset in range(4):
                    stream.tokens(submission.request, offset, [9])
                stream.finish(submission.request)
                granted += 1
                stream.grant(granted)

    async def ask(index: int) -> None:
        call = rig.generate([5, 6], max_tokens=4, request_id=str(index))
        for _ in range(generator.randrange(4)):
            if await call.read() is grpc.aio.EOF:
                return
        call.cancel()

    server = asyncio.create_task(serve())
    await soon(asyncio.gather(*(ask(index) for index in range(100))))
    await rig.info_when(nothing_left)
    server.cancel()
    dispatcher = rig.router.dispatcher
    assert (dispatcher.num_live, len(dispatcher.queue)) == (0, 0)


async def test_a_client_that_reads_too_slowly_is_cut_off_and_others_are_not(
    make_target, make_rig, collect, failure
) -> None:
    target = await make_target()
    rig = await make_rig([target], client_buffer_tokens=2000)
    stream = await target.next_stream()
    async with rig.slow_client() as slow_rig:
        slow = slow_rig.generate(max_tokens=8000)
        victim = await stream.next_submission()
        other = rig.generate(max_tokens=3)
        submission = await stream.next_submission()
        # Nothing reads the slow call: once the transport is full, the router's own buffer fills.
        for offset in range(0, 1_000_000, 1000):
            stream.tokens(victim.request, offset, [9] * 1000)
            await rig.info()
            if not stream.cancels.empty():
                break
        assert await soon(stream.cancels.get()) == victim.request
        stream.tokens(submission.request, 0, [9, 9, 9])
        stream.finish(submission.request)
        assert (await collect(other))[-1].usage.completion_tokens == 3
        code, message = await failure(slow)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "--client-buffer-tokens" in message


async def test_messages_join_steps_under_load_but_the_first_and_the_last_do_not_wait(
    make_target, make_rig, collect, monkeypatch
) -> None:
    monkeypatch.setattr(stream_pacer, "MESSAGES_PER_S", 0.001)  # as if thousands streamed
    target = await make_target()
    rig = await make_rig([target], stream_interval=8)
    stream = await target.next_stream()
    call = rig.generate(max_tokens=21)
    submission = await stream.next_submission()
    stream.tokens(submission.request, 0, [9])
    assert list((await soon(call.read())).token_ids) == [9]
    for offset in range(1, 12):
        stream.tokens(submission.request, offset, [10])
    joined = await soon(call.read())
    assert (list(joined.token_ids), joined.offset) == ([10] * 8, 1)
    stream.finish(submission.request)
    (last,) = await collect(call)
    assert (list(last.token_ids), last.offset) == ([10] * 3, 9)


async def test_tokens_that_wait_are_sent_when_no_more_come(skip_time, make_target, make_rig, monkeypatch) -> None:
    monkeypatch.setattr(stream_pacer, "MESSAGES_PER_S", 0.1)
    target = await make_target()
    rig = await make_rig([target], stream_interval=8)
    stream = await target.next_stream()
    call = rig.generate(max_tokens=21)
    submission = await stream.next_submission()
    for offset in range(3):
        stream.tokens(submission.request, offset, [10])
        if offset == 0:
            await soon(call.read())
    (live,) = rig.router.dispatcher.lives
    while len(live.emitted) < 3:
        await rig.info()
    skip_time(10.0)
    assert list((await soon(call.read())).token_ids) == [10, 10]
    call.cancel()


async def test_one_stream_alone_gets_a_message_a_step(make_target, make_rig) -> None:
    target = await make_target()
    rig = await make_rig([target], stream_interval=8)
    stream = await target.next_stream()
    call = rig.generate(max_tokens=21)
    submission = await stream.next_submission()
    for offset in range(4):
        stream.tokens(submission.request, offset, [10])
        assert (await soon(call.read())).offset == offset
    call.cancel()


async def test_a_draining_router_finishes_what_runs_and_refuses_what_comes(
    make_target, make_rig, collect, failure
) -> None:
    target = await make_target()
    rig = await make_rig([target])
    stream = await target.next_stream()
    call = rig.generate(max_tokens=2)
    submission = await stream.next_submission()
    assert not (await rig.info()).draining
    drain = asyncio.create_task(rig.router.drain())
    code, message = await refused(rig, failure)
    assert (await rig.info()).draining
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "draining" in message
    assert not drain.done()
    stream.tokens(submission.request, 0, [9, 9])
    stream.finish(submission.request)
    assert (await collect(call))[-1].usage.completion_tokens == 2
    await soon(drain)


async def test_a_drain_gives_up_after_its_timeout(make_target, make_rig) -> None:
    target = await make_target()
    rig = await make_rig([target], drain_timeout_s=0.05)
    stream = await target.next_stream()
    call = rig.generate()
    await stream.next_submission()
    await soon(rig.router.drain())
    assert rig.router.dispatcher.num_live == 1
    call.cancel()


async def refused(rig, failure) -> tuple[grpc.StatusCode, str]:
    """How a new call fails once the drain has begun."""
    await rig.info()
    return await failure(rig.generate())
