"""Submissions against credits: what waits, what leaves together, what is refused."""

from __future__ import annotations

import asyncio

import grpc

from paceline.admission import pages_to_reserve
from paceline.types import SamplingParams
from router.live_request import Arrival
from router.request import ClientRequest


async def test_requests_of_one_turn_leave_in_one_message(make_target, make_rig) -> None:
    target = await make_target(slots=0)
    rig = await make_rig([target])
    stream = await target.next_stream()
    calls = [rig.generate([5, 6], request_id=f"r{index}") for index in range(5)]
    await rig.info_when(lambda info: info.queued_requests == 5)
    stream.grant(5)
    batch = await stream.next_submit()
    assert sorted(submission.request_id for submission in batch) == [f"r{index}" for index in range(5)]
    assert len({submission.request for submission in batch}) == 5
    for call in calls:
        call.cancel()


async def test_a_request_that_finds_nobody_waiting_is_submitted_as_it_arrives(make_target, make_rig) -> None:
    target = await make_target(slots=1)
    rig = await make_rig([target])
    await rig.info_when(lambda info: info.targets[0].ready)
    dispatcher = rig.router.dispatcher
    request = ClientRequest("r", (5, 6), SamplingParams(max_tokens=1, seed=1))
    arrival = Arrival(asyncio.get_running_loop().time())
    lives = [dispatcher.admit(request, arrival) for _ in range(2)]
    assert [live.flight is not None for live in lives] == [True, False]
    assert dispatcher.queue.head() is lives[1]
    for live in lives:
        dispatcher.release(live)


async def test_no_more_is_submitted_than_slots_allow(make_target, make_rig, collect) -> None:
    target = await make_target(slots=2)
    rig = await make_rig([target])
    stream = await target.next_stream()
    calls = [rig.generate([5, 6], max_tokens=1, request_id=f"r{index}") for index in range(3)]
    await rig.info_when(lambda info: info.queued_requests == 1 and info.targets[0].running_requests == 2)
    running = await stream.next_submit()
    while len(running) < 2:
        running += await stream.next_submit()
    stream.tokens(running[0].request, 0, [9])
    stream.finish(running[0].request)
    stream.grant(3)
    last = await stream.next_submission()
    assert last.request_id not in {submission.request_id for submission in running}
    for submission in (running[1], last):
        stream.tokens(submission.request, 0, [9])
        stream.finish(submission.request)
    for call in calls:
        assert (await collect(call))[-1].usage.completion_tokens == 1


async def test_pages_are_spent_by_the_shared_formula(make_target, make_rig) -> None:
    pages = pages_to_reserve(prompt_len=3, max_tokens=40, max_nodes=64, page_size=16)
    target = await make_target(pages=2 * pages - 1)
    rig = await make_rig([target])
    stream = await target.next_stream()
    calls = [rig.generate([5, 6, 7], max_tokens=40) for _ in range(2)]
    await stream.next_submission()
    await rig.info_when(lambda info: info.queued_requests == 1)
    stream.grant(64, 2 * pages)
    await stream.next_submission()
    for call in calls:
        call.cancel()


async def test_a_full_queue_refuses_with_what_to_do(make_target, make_rig, failure) -> None:
    target = await make_target(slots=0)
    rig = await make_rig([target], max_queued_requests=1)
    await target.next_stream()
    waiting = rig.generate()
    await rig.info_when(lambda info: info.queued_requests == 1)
    code, message = await failure(rig.generate())
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "--max-queued-requests" in message
    waiting.cancel()


async def test_two_targets_share_the_requests(make_target, make_rig) -> None:
    targets = [await make_target(max_running_requests=4), await make_target(max_running_requests=4)]
    rig = await make_rig(targets)
    streams = [await target.next_stream() for target in targets]
    await rig.info_when(lambda info: all(state.ready for state in info.targets))
    calls = [rig.generate() for _ in range(8)]
    await rig.info_when(lambda info: [state.running_requests for state in info.targets] == [4, 4])
    for stream in streams:
        await stream.next_submit()
    for call in calls:
        call.cancel()


async def test_a_request_waits_for_a_target_to_come_up(make_target, make_rig, collect) -> None:
    target = await make_target()
    await target.die()
    rig = await make_rig([target])
    call = rig.generate(max_tokens=1)
    await rig.info_when(lambda info: info.queued_requests == 1)
    await target.start(target.port)
    stream = await target.next_stream()
    submission = await stream.next_submission()
    stream.tokens(submission.request, 0, [9])
    stream.finish(submission.request)
    assert (await collect(call))[-1].usage.completion_tokens == 1


async def test_without_a_target_a_request_fails_after_the_queue_timeout(make_target, make_rig, failure) -> None:
    target = await make_target()
    await target.die()
    rig = await make_rig([target], queue_timeout_s=0.2)
    code, message = await failure(rig.generate())
    assert code is grpc.StatusCode.UNAVAILABLE
    assert target.address in message
    assert (await rig.info()).queued_requests == 0


async def test_a_request_that_waits_for_credits_outlives_the_queue_timeout(
    skip_time, make_target, make_rig, collect
) -> None:
    target = await make_target(slots=0)
    rig = await make_rig([target], queue_timeout_s=10.0)
    stream = await target.next_stream()
    await rig.info_when(lambda info: info.targets[0].ready)
    call = rig.generate(max_tokens=1)
    await rig.info_when(lambda info: info.queued_requests == 1)
    skip_time(20.0)
    assert (await rig.info()).queued_requests == 1
    stream.grant(1)
    submission = await stream.next_submission()
    stream.tokens(submission.request, 0, [9])
    stream.finish(submission.request)
    assert (await collect(call))[-1].usage.completion_tokens == 1
