"""A request that loses its target goes on elsewhere: the client sees each token once."""

from __future__ import annotations

import pytest

from paceline.v1 import common_pb2, target_pb2


async def begun(rig, first, second, *, max_tokens=6):
    """A request with three tokens out, its call, its submission, and the streams: its own first."""
    streams = {"a": await first.next_stream(), "b": await second.next_stream()}
    await rig.info_when(lambda info: all(state.ready for state in info.targets))
    call = rig.generate([5, 6, 7], max_tokens=max_tokens, temperature=0.5)
    info = await rig.info_when(lambda info: any(state.running_requests for state in info.targets))
    own = "a" if info.targets[0].running_requests else "b"
    stream = streams.pop(own)
    (other,) = streams.values()
    submission = await stream.next_submission()
    stream.tokens(submission.request, 0, [11, 12, 13])
    message = await call.read()
    assert list(message.token_ids) == [11, 12, 13]
    return call, submission, stream, other, first if own == "a" else second


async def test_when_a_target_dies_another_goes_on_from_the_tokens_streamed(make_target, make_rig, collect) -> None:
    first, second = await make_target(), await make_target()
    rig = await make_rig([first, second])
    call, before, _, other, owner = await begun(rig, first, second)
    await owner.die()
    after = await other.next_submission()
    assert list(after.emitted_ids) == [11, 12, 13]
    assert (after.attempt, before.attempt) == (1, 0)
    assert list(after.prompt_ids) == list(before.prompt_ids)
    assert after.sampling_params == before.sampling_params
    other.tokens(after.request, 3, [14, 15, 16])
    other.finish(after.request)
    messages = await collect(call)
    assert [token for message in messages for token in message.token_ids] == [14, 15, 16]
    assert messages[0].offset == 3
    assert messages[-1].usage.completion_tokens == 6


async def test_tokens_that_a_second_target_repeats_are_dropped(make_target, make_rig, collect) -> None:
    first, second = await make_target(), await make_target()
    rig = await make_rig([first, second])
    call, _, stream, other, _ = await begun(rig, first, second)
    stream.end()
    after = await other.next_submission()
    other.tokens(after.request, 1, [99])
    other.tokens(after.request, 1, [99, 98, 14])
    other.tokens(after.request, 4, [15, 16])
    other.finish(after.request)
    messages = await collect(call)
    assert [token for message in messages for token in message.token_ids] == [14, 15, 16]


async def test_a_gap_in_the_deltas_is_replayed_and_its_attempt_cancelled(make_target, make_rig, collect) -> None:
    first, second = await make_target(), await make_target()
    rig = await make_rig([first, second])
    call, before, stream, other, _ = await begun(rig, first, second)
    stream.tokens(before.request, 4, [77])
    after = await other.next_submission()
    assert list(after.emitted_ids) == [11, 12, 13]
    assert await stream.cancels.get() == before.request
    stream.tokens(before.request, 3, [66])
    other.tokens(after.request, 3, [14, 15, 16])
    other.finish(after.request)
    assert [token for message in await collect(call) for token in message.token_ids] == [14, 15, 16]


@pytest.mark.parametrize(
    "reason",
    [target_pb2.RETURN_REASON_PREEMPTED, target_pb2.RETURN_REASON_NO_CREDIT, target_pb2.RETURN_REASON_DRAINING],
)
async def test_a_returned_request_goes_to_another_target(make_target, make_rig, collect, reason: int) -> None:
    first, second = await make_target(), await make_target()
    rig = await make_rig([first, second])
    call, before, stream, other, _ = await begun(rig, first, second)
    stats = common_pb2.SpeculationStats(rounds=2, speculative_rounds=2, accepted_by_depth=[1])
    stream.send(returns=[target_pb2.Return(request=before.request, reason=reason, stats=stats)])
    after = await other.next_submission()
    assert (list(after.emitted_ids), after.attempt) == ([11, 12, 13], 1)
    other.tokens(after.request, 3, [14, 15, 16])
    more = common_pb2.SpeculationStats(rounds=3, speculative_rounds=1, accepted_by_depth=[1, 1])
    other.finish(after.request, stats=more)
    last = (await collect(call))[-1]
    assert last.stats == common_pb2.SpeculationStats(rounds=5, speculative_rounds=3, accepted_by_depth=[2, 1])


ROUNDS = {"num_nodes": [4, 4, 1], "accept_length": [2, 0, 0]}  # 5 tokens; the last tree was late


def rounds_of(request: int, num_nodes: list[int], accept_length: list[int]) -> target_pb2.SpeculativeRounds:
    num = len(num_nodes)
    shapes = [common_pb2.TreeShape(num_steps=3, eagle_topk=1, num_draft_tokens=4)]
    return target_pb2.SpeculativeRounds(
        shapes=shapes, request=[request] * num, shape=[0] * num, num_nodes=num_nodes, accept_length=accept_length
    )


@pytest.mark.parametrize("end", ["dies", "leaves a gap"])
async def test_the_rounds_of_a_target_that_never_told_its_counts_are_in_the_answers_statistics(
    make_target, make_rig, collect, end: str
) -> None:
    first, second = await make_target(), await make_target()
    rig = await make_rig([first, second])
    call, before, stream, other, owner = await begun(rig, first, second, max_tokens=12)
    stream.tokens(before.request, 3, [14, 15, 16, 17, 18, 19], rounds=rounds_of(before.request, **ROUNDS))
    assert len((await call.read()).token_ids) == 6  # with three before: the prompt's, and eight of six rounds
    if end == "dies":
        await owner.die()
    else:
        stream.tokens(before.request, 99, [1])
    after = await other.next_submission()
    other.tokens(after.request, 9, [20, 21, 22])
    stats = {"speculative_rounds": 1, "rounds": 2, "accepted_drafts": 1, "proposed_drafts": 3, "late_rounds": 0}
    counted = common_pb2.SpeculationStats(**stats, accepted_by_depth=[1])
    other.finish(after.request, stats=counted)
    assert (await collect(call))[-1].stats == common_pb2.SpeculationStats(
        speculative_rounds=3, rounds=8, accepted_drafts=3, proposed_drafts=9, late_rounds=1, accepted_by_depth=[2, 1]
    )


@pytest.mark.parametrize(("num_nodes", "accepted"), [(0, 0), (65, 0), (4, 4)])
async def test_rounds_that_cannot_be_end_the_stream_and_the_request_goes_on_elsewhere(
    make_target, make_rig, collect, num_nodes: int, accepted: int
) -> None:
    first, second = await make_target(), await make_target()
    rig = await make_rig([first, second])
    call, before, stream, other, _ = await begun(rig, first, second)
    stream.send(rounds=rounds_of(before.request, [num_nodes], [accepted]))
    after = await other.next_submission()
    other.tokens(after.request, 3, [14, 15, 16])
    other.finish(after.request)
    assert [token for message in await collect(call) for token in message.token_ids] == [14, 15, 16]


async def test_a_target_that_comes_back_starts_a_stream_of_its_own(make_target, make_rig, collect) -> None:
    target = await make_target()
    rig = await make_rig([target])
    stream = await target.next_stream()
    call = rig.generate(max_tokens=2)
    before = await stream.next_submission()
    stream.tokens(before.request, 0, [11])
    assert list((await call.read()).token_ids) == [11]
    await target.die()
    target.info.incarnation = 7
    await target.start(target.port)
    fresh = await target.next_stream()
    after = await fresh.next_submission()
    assert (list(after.emitted_ids), after.attempt) == ([11], 1)
    fresh.tokens(after.request, 1, [12])
    fresh.finish(after.request)
    assert [token for message in await collect(call) for token in message.token_ids] == [12]


async def test_a_request_whose_last_token_was_out_ends_without_another_attempt(make_target, make_rig, collect) -> None:
    target = await make_target()
    rig = await make_rig([target])
    stream = await target.next_stream()
    full = rig.generate(max_tokens=2)
    submission = await stream.next_submission()
    stream.tokens(submission.request, 0, [11, 12])
    stopped = rig.generate(max_tokens=9)
    submission = await stream.next_submission()
    stream.tokens(submission.request, 0, [11, 2])
    assert list((await full.read()).token_ids) == [11, 12]
    assert list((await stopped.read()).token_ids) == [11, 2]
    stream.end()
    assert (await collect(full))[-1].finish_reason == common_pb2.FINISH_REASON_LENGTH
    assert (await collect(stopped))[-1].finish_reason == common_pb2.FINISH_REASON_STOP
