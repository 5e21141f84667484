"""What a client gets who asks for a deadline, a priority or a tenant: over gRPC, before a scripted target."""

from __future__ import annotations

import asyncio

import grpc

from tests.router.conftest import soon


async def up(make_target, make_rig, *, slots: int = 64, **flags):
    target = await make_target(slots=slots)
    rig = await make_rig([target], **flags)
    stream = await target.next_stream()
    await rig.info_when(lambda info: info.targets[0].ready)
    return rig, stream


async def queued(rig, num_requests: int) -> None:
    await rig.info_when(lambda info: info.queued_requests == num_requests)


async def hint(call) -> int | None:
    """Milliseconds."""
    metadata = dict(await call.trailing_metadata())
    return int(metadata["retry-after-ms"]) if "retry-after-ms" in metadata else None


def answer(stream, number: int) -> None:
    stream.tokens(number, 0, [9])
    stream.finish(number)


async def measure(rig, stream, collect, *, step_ms: float) -> None:
    """Lets the router see what steps take."""
    call = rig.generate([5] * 10, max_tokens=4, ignore_eos=True)
    number = (await stream.next_submission()).request
    stream.load(prefilling_requests=1, rows=10, prefill_tokens=10, step_ms=step_ms)
    for index in range(4):
        stream.tokens(number, index, [9])
        stream.load(running_requests=1, rows=1, step_ms=step_ms)
    stream.finish(number)
    await collect(call)


async def test_a_request_whose_deadline_passes_in_the_queue_ends_so(skip_time, make_target, make_rig, failure) -> None:
    rig, stream = await up(make_target, make_rig, slots=0)
    call = rig.generate(deadline_s=5.0)
    await queued(rig, 1)
    skip_time(5.0)
    code, message = await failure(call)
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "passed while it waited in the queue" in message
    assert (await rig.info()).queued_requests == 0
    assert rig.router.dispatcher.num_live == 0
    assert stream.submits.empty()


async def test_a_request_whose_deadline_passes_while_it_runs_ends_so_and_leaves_the_target(
    skip_time, make_target, make_rig, failure
) -> None:
    rig, stream = await up(make_target, make_rig)
    call = rig.generate(deadline_s=5.0)
    number = (await stream.next_submission()).request
    stream.tokens(number, 0, [9, 10])
    await soon(call.read())
    skip_time(5.0)
    code, message = await failure(call)
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "passed after 2 tokens" in message
    assert await soon(stream.cancels.get()) == number


async def test_a_request_that_no_target_could_do_in_time_is_refused_at_once(
    make_target, make_rig, collect, failure
) -> None:
    rig, stream = await up(make_target, make_rig)
    await measure(rig, stream, collect, step_ms=50.0)
    code, message = await failure(rig.generate(max_tokens=1000, ignore_eos=True, deadline_s=20.0))
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "ask for fewer tokens" in message
    assert stream.submits.empty()
    call = rig.generate(max_tokens=10, ignore_eos=True, deadline_s=20.0)
    assert (await stream.next_submission()).sampling_params.max_tokens == 10
    call.cancel()


async def test_the_calls_own_deadline_counts(make_target, make_rig, collect, failure) -> None:
    rig, stream = await up(make_target, make_rig)
    await measure(rig, stream, collect, step_ms=50.0)
    request = rig.request(max_tokens=1000, ignore_eos=True)
    code, message = await failure(rig.stub.Generate(request, timeout=20.0))
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "ask for fewer tokens" in message


async def test_a_request_for_which_the_queue_is_too_long_is_refused_with_a_hint(
    make_target, make_rig, collect, failure
) -> None:
    rig, stream = await up(make_target, make_rig, slots=1)
    calls = [rig.generate([5] * 10, max_tokens=90, ignore_eos=True) for _ in range(12)]
    for granted in range(2, 5):
        submission = await stream.next_submission()
        await asyncio.sleep(0.05)
        answer(stream, submission.request)
        stream.grant(granted)
    await stream.next_submission()
    patient = rig.generate([5] * 10, max_tokens=90, ignore_eos=True, deadline_s=60.0)
    await queued(rig, 9)
    hasty = rig.generate([5] * 10, max_tokens=90, ignore_eos=True, deadline_s=0.2)
    code, message = await failure(hasty)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "would wait about" in message
    assert await hint(hasty) > 0
    assert (await rig.info()).queued_requests == 9
    for call in (*calls, patient):
        call.cancel()


async def test_priorities_order_a_tenants_requests(make_target, make_rig) -> None:
    rig, stream = await up(make_target, make_rig, slots=0)
    calls = []
    for name, priority in (("low", -1), ("none", None), ("high", 5), ("higher", 6)):
        calls.append(rig.generate(request_id=name, priority=priority))
        await queued(rig, len(calls))
    stream.grant(4)
    assert [each.request_id for each in await stream.next_submit()] == ["higher", "high", "none", "low"]
    for call in calls:
        call.cancel()


async def test_tenants_share_slots_by_their_weights(make_target, make_rig) -> None:
    rig, stream = await up(make_target, make_rig, slots=0, tenant_weights=("gold=2",))
    calls = []
    for tenant in ("gold",) * 6 + ("plain",) * 6:
        calls.append(rig.generate(request_id=tenant, tenant=tenant, ignore_eos=True))
        await queued(rig, len(calls))
    stream.grant(7)
    names = [each.request_id for each in await stream.next_submit()]
    assert (names.count("gold"), names.count("plain")) == (5, 2)
    for call in calls:
        call.cancel()


async def test_a_tenant_that_sends_too_often_is_refused_with_a_hint_and_others_are_not(
    make_target, make_rig, failure
) -> None:
    flags = {"tenant_rate_limit": 2, "tenant_rate_period_s": 30.0, "tenant_rate_wait_s": 0.05}
    rig, stream = await up(make_target, make_rig, **flags)
    calls = [rig.generate(tenant="x") for _ in range(2)]
    for _ in calls:
        await stream.next_submission()
    refused = rig.generate(tenant="x")
    code, message = await failure(refused)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "tenant 'x'" in message
    assert await hint(refused) == 30_000
    calls.append(rig.generate(tenant="y"))
    await stream.next_submission()
    for call in calls:
        call.cancel()


async def test_a_full_queue_gives_a_hint_and_makes_room_for_another_tenant(make_target, make_rig, failure) -> None:
    rig, _ = await up(make_target, make_rig, slots=0, max_queued_requests=2)
    first = rig.generate(tenant="x")
    await queued(rig, 1)
    second = rig.generate(tenant="x")
    await queued(rig, 2)
    third = rig.generate(tenant="x")
    code, message = await failure(third)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "try again in 1 s" in message
    assert await hint(third) == 1000
    other = rig.generate(tenant="y")
    code, message = await failure(second)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "goes before this one" in message
    for call in (first, other):
        call.cancel()


async def test_prompts_are_paced_by_the_targets_reports_and_anew_on_a_new_stream(make_target, make_rig) -> None:
    target = await make_target()
    rig = await make_rig([target], target_tpot_ms=40.0)
    stream = await target.next_stream()
    for _ in range(2):
        call = rig.generate(max_tokens=100)
        number = (await stream.next_submission()).request
        stream.load(running_requests=1, rows=1, step_ms=20.0)
        stream.tokens(number, 0, [9])
        stream.load(running_requests=1, prefilling_requests=1, rows=401, prefill_tokens=400, step_ms=220.0)
        policy = await soon(stream.policies.get())
        assert 16 <= policy.chunked_prefill_size < 100
        call.cancel()
        await stream.cancels.get()
        stream.end()
        stream = await target.next_stream()
