"""One request through a router to a scripted target and back."""

from __future__ import annotations

from typing import Any

from paceline.v1 import common_pb2, router_pb2, target_pb2
from router.target_link import TargetLink

LENGTH = common_pb2.FINISH_REASON_LENGTH
STOP = common_pb2.FINISH_REASON_STOP


async def test_tokens_come_back_as_they_are_emitted_with_their_text(make_target, make_rig, collect, tokenizer) -> None:
    target = await make_target()
    rig = await make_rig([target])
    stream = await target.next_stream()
    ids = tokenizer.encode("Hello there, world", add_special_tokens=True)
    call = rig.generate(ids, max_tokens=4)
    submission = await stream.next_submission()
    assert list(submission.prompt_ids) == ids
    assert submission.sampling_params.max_tokens == 4
    assert submission.sampling_params.HasField("seed")
    answer = tokenizer.encode(" the end of it", add_special_tokens=False)
    stream.tokens(submission.request, 0, answer[:1])
    first = await call.read()
    assert list(first.prompt_ids) == ids
    assert (first.text, list(first.token_ids), first.offset) == (" the", answer[:1], 0)
    stream.tokens(submission.request, 1, answer[1:])
    stats = common_pb2.SpeculationStats(rounds=3, speculative_rounds=2, accepted_by_depth=[2, 1])
    stream.finish(submission.request, stats=stats)
    rest = await collect(call)
    assert "".join(message.text for message in rest) == " end of it"
    assert [token for message in rest for token in message.token_ids] == answer[1:]
    assert not any(message.prompt_ids for message in rest)
    assert rest[-1].finish_reason == LENGTH
    assert rest[-1].usage == router_pb2.Usage(prompt_tokens=len(ids), completion_tokens=4)
    assert rest[-1].stats == stats


async def test_a_token_leaves_to_its_client_before_the_steps_report_is_worked_in(
    monkeypatch, make_target, make_rig
) -> None:
    target = await make_target()
    rig = await make_rig([target])
    stream = await target.next_stream()
    call = rig.generate(max_tokens=4)
    submission = await stream.next_submission()
    dispatcher = rig.router.dispatcher
    work_in, taken = dispatcher.on_step, []

    def on_step(link: TargetLink, **facts: Any) -> None:
        taken.extend(live.taken for live in dispatcher.lives)
        work_in(link, **facts)

    monkeypatch.setattr(dispatcher, "on_step", on_step)
    stream.tokens(submission.request, 0, [9], load=target_pb2.LoadReport(running_requests=1))
    assert list((await call.read()).token_ids) == [9]
    assert taken == [1]
    call.cancel()


async def test_the_stop_token_is_returned_without_text(make_target, make_rig, collect, tokenizer) -> None:
    target = await make_target()
    rig = await make_rig([target])
    stream = await target.next_stream()
    call = rig.generate(stop_token_ids=[100], skip_special_tokens=False)
    submission = await stream.next_submission()
    stream.tokens(submission.request, 0, [99, 100])
    stream.finish(submission.request, reason=STOP)
    messages = await collect(call)
    assert [token for message in messages for token in message.token_ids] == [99, 100]
    assert "".join(message.text for message in messages) == tokenizer.decode([99], skip_special_tokens=False)
    assert messages[-1].usage.completion_tokens == 2
