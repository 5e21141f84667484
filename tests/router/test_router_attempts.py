"""When a request gets another attempt, and when no more."""

from __future__ import annotations

import asyncio

import grpc

from paceline.v1 import target_pb2


def tokens_of(messages) -> list[int]:
    """Checks that offsets join without gap or repetition."""
    tokens: list[int] = []
    for message in messages:
        assert message.offset == len(tokens)
        tokens += message.token_ids
    return tokens


async def test_a_draining_target_gets_nothing_more(make_target, make_rig, collect) -> None:
    target = await make_target()
    rig = await make_rig([target])
    stream = await target.next_stream()
    call = rig.generate(max_tokens=1)
    submission = await stream.next_submission()
    stream.give_back(submission.request, target_pb2.RETURN_REASON_DRAINING)
    info = await rig.info_when(lambda info: info.queued_requests == 1)
    assert (info.targets[0].ready, info.targets[0].message) == (False, "draining")
    stream.load(draining=False)
    again = await stream.next_submission()
    stream.tokens(again.request, 0, [9])
    stream.finish(again.request)
    assert (await collect(call))[-1].usage.completion_tokens == 1


async def test_after_no_credit_nothing_is_sent_before_the_next_credits(make_target, make_rig, collect) -> None:
    target = await make_target()
    rig = await make_rig([target], max_attempts=2)
    stream = await target.next_stream()
    call = rig.generate(max_tokens=1)
    for _ in range(3):  # more often than max_attempts: that another router was faster is no failure
        bounced = await stream.next_submission()
        stream.give_back(bounced.request, target_pb2.RETURN_REASON_NO_CREDIT)
        await rig.info_when(lambda info: info.queued_requests == 1)
        assert stream.submits.empty()
        stream.grant(64)
    again = await stream.next_submission()
    stream.tokens(again.request, 0, [9])
    stream.finish(again.request)
    assert (await collect(call))[-1].usage.completion_tokens == 1


async def test_attempts_without_a_token_are_bounded(make_target, make_rig, failure) -> None:
    target = await make_target()
    rig = await make_rig([target], max_attempts=3)
    stream = await target.next_stream()
    call = rig.generate()
    for attempt in range(3):
        submission = await stream.next_submission()
        assert submission.attempt == attempt
        stream.give_back(submission.request, target_pb2.RETURN_REASON_PREEMPTED)
    code, message = await failure(call)
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "3 attempts" in message
    assert "preempted" in message


async def test_attempts_that_bring_tokens_are_not_bounded(make_target, make_rig, collect) -> None:
    target = await make_target()
    rig = await make_rig([target], max_attempts=2)
    stream = await target.next_stream()
    call = rig.generate(max_tokens=6)
    for attempt in range(5):
        submission = await stream.next_submission()
        stream.tokens(submission.request, attempt, [20 + attempt])
        stream.give_back(submission.request, target_pb2.RETURN_REASON_PREEMPTED)
    submission = await stream.next_submission()
    stream.tokens(submission.request, 5, [25])
    stream.finish(submission.request)
    assert tokens_of(await collect(call)) == [20, 21, 22, 23, 24, 25]


async def test_a_request_whose_model_is_gone_ends_though_targets_of_another_go_on(
    make_target, make_rig, failure
) -> None:
    own, other = await make_target(), await make_target(model_fingerprint="another", slots=0)
    rig = await make_rig([own, other], queue_timeout_s=0.2)
    stream, busy = await own.next_stream(), await other.next_stream()
    await rig.info_when(lambda info: all(state.ready for state in info.targets))
    call = rig.generate(max_tokens=2)
    submission = await stream.next_submission()
    stream.tokens(submission.request, 0, [11])
    await call.read()

    async def report() -> None:
        while True:
            busy.load(running_requests=1)
            await rig.info()

    reports = asyncio.create_task(report())
    await own.die()
    code, message = await failure(call)
    reports.cancel()
    assert code is grpc.StatusCode.UNAVAILABLE
    assert own.address in message


async def test_a_hung_target_is_given_up(skip_time, make_target, make_rig, collect) -> None:
    target = await make_target()
    rig = await make_rig([target], target_timeout_s=30.0)
    stream = await target.next_stream()
    call = rig.generate(max_tokens=1)
    await stream.next_submission()
    skip_time(31.0)
    fresh = await target.next_stream()
    submission = await fresh.next_submission()
    fresh.tokens(submission.request, 0, [9])
    fresh.finish(submission.request)
    assert (await collect(call))[-1].usage.completion_tokens == 1


async def test_a_message_whose_columns_disagree_ends_the_stream_and_not_the_request(
    make_target, make_rig, collect
) -> None:
    target = await make_target()
    rig = await make_rig([target])
    stream = await target.next_stream()
    call = rig.generate(max_tokens=1)
    submission = await stream.next_submission()
    stream.send(deltas=target_pb2.TokenDeltas(request=[submission.request], offset=[0], num_tokens=[3], tokens=[1]))
    fresh = await target.next_stream()
    again = await fresh.next_submission()
    fresh.tokens(again.request, 0, [9])
    fresh.finish(again.request)
    assert tokens_of(await collect(call)) == [9]
