"""Serve over real gRPC: credits, deltas, refusals, merging and the stream's end."""

import asyncio

import grpc
import pytest

from paceline.v1 import common_pb2, target_pb2
from tests.support.target_peer import RouterPeer, submission
from tests.support.tiny_draft import CONTEXT, VOCAB
from tests.support.tiny_target import random_prompt
from tests.support.waiting import WAIT_S


async def test_the_first_message_carries_info_and_credits(serve_target):
    async with serve_target() as target:
        router = await target.connect()
        assert router.info.service == "target"
        assert (router.info.vocab_size, router.info.context_length) == (VOCAB, CONTEXT)
        assert router.info.feature_id
        assert router.info.head_fingerprint
        assert (router.credits.slots, router.credits.pages) == (8, 512)


async def test_requests_stream_their_tokens_and_end(serve_target, loop):
    prompts = [random_prompt(n, seed=n) for n in (3, 20)]
    alone = [loop.generate(prompt) for prompt in prompts]
    async with serve_target() as target:
        router = await target.connect()
        await router.submit(*(submission(i, prompt) for i, prompt in enumerate(prompts)))
        got = await router.finish(0, 1)
        assert [g.tokens for g in got] == alone
        assert {g.finish.reason for g in got} == {common_pb2.FINISH_REASON_LENGTH}
        assert got[0].finish.stats.rounds == 7
        assert router.credits.slots == 10
        assert router.load.free_pages == router.load.num_pages == 512


async def test_two_routers_share_the_credits(serve_target):
    async with serve_target() as target:
        first = await target.connect()
        second = await target.connect()
        assert (second.credits.slots, second.credits.pages) == (4, 512)
        await first.submit(submission(1, [5, 6]))
        await first.finish(1)
        assert first.credits.slots == 5


BAD = {
    "empty prompt": (dict(prompt=[]), "prompt_ids is empty"),
    "long prompt": (dict(prompt=[5] * CONTEXT), f"the prompt has {CONTEXT} tokens"),
    "token": (dict(prompt=[VOCAB]), f"token id {VOCAB} is outside"),
    "emitted": (dict(prompt=[5], emitted=[VOCAB + 1]), f"token id {VOCAB + 1} is outside"),
    "temperature": (dict(prompt=[5], temperature=-1.0), "temperature is -1"),
    "nan": (dict(prompt=[5], temperature=float("nan")), "temperature is nan"),
    "top_p": (dict(prompt=[5], top_p=1.5), "top_p is 1.5"),
    "max_tokens": (dict(prompt=[5], max_tokens=0), "max_tokens is 0"),
}


@pytest.mark.parametrize("case", BAD)
async def test_a_bad_submission_ends_with_its_status_and_no_other_notices(serve_target, case):
    fields, message = BAD[case]
    async with serve_target() as target:
        router = await target.connect()
        await router.submit(submission(1, **fields), submission(2, [5, 6, 7]))
        bad, good = await router.finish(1, 2)
        assert bad.finish.reason == common_pb2.FINISH_REASON_ERROR
        assert bad.finish.status_code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        assert message in bad.finish.status_message
        assert len(good.tokens) == 8
        assert router.credits.slots == 10
        await target.all_free()


async def test_a_reserved_field_is_refused_by_name(serve_target):
    async with serve_target() as target:
        router = await target.connect()
        await router.submit(submission(1, [5], frequency_penalty=0.5))
        (got,) = await router.finish(1)
        assert got.finish.status_code == grpc.StatusCode.UNIMPLEMENTED.value[0]
        assert "frequency_penalty" in got.finish.status_message


@pytest.mark.parametrize(
    "message",
    [
        target_pb2.ServeRequest(submit=target_pb2.Submit()),
        target_pb2.ServeRequest(),
    ],
    ids=["submit", "empty"],
)
async def test_a_stream_without_a_hello_is_refused(serve_target, message):
    async with serve_target() as target:
        router = RouterPeer(target.stub.Serve())
        await router.call.write(message)
        assert await router.status() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_message_that_makes_no_sense_ends_its_stream_alone(serve_target):
    async with serve_target() as target:
        good, bad = await target.connect(), await target.connect()
        await bad.send(update_speculation=target_pb2.UpdateSpeculation(requests=[1, 2]))
        assert await bad.status() is grpc.StatusCode.INVALID_ARGUMENT
        await good.submit(submission(1, [5]))
        await good.finish(1)


async def test_random_bytes_end_their_stream_alone(serve_target):
    async with serve_target() as target:
        good = await target.connect()
        raw = target.channel.stream_stream("/paceline.v1.TargetService/Serve")
        bad = RouterPeer(raw())
        await bad.call.write(target_pb2.ServeRequest(hello=target_pb2.ServeHello()).SerializeToString())
        await bad.call.write(b"\xff\x00garbage\xff")
        assert await bad.status() is not grpc.StatusCode.OK
        await good.submit(submission(1, [5]))
        await good.finish(1)


async def test_a_cancel_ends_a_request_and_frees_its_pages(serve_target):
    async with serve_target() as target:
        router = await target.connect()
        await router.submit(submission(1, [5], max_tokens=200), submission(2, [6], max_tokens=4))
        await router.finish(2)
        await router.send(cancel=target_pb2.Cancel(requests=[1, 77]))
        (got,) = await router.finish(1)
        assert got.finish.reason == common_pb2.FINISH_REASON_CANCELLED
        assert len(got.tokens) < 200
        await target.all_free()


async def test_the_end_of_a_stream_frees_what_it_held(serve_target):
    async with serve_target() as target:
        router = await target.connect()
        await router.submit(*(submission(i, [5, 6], max_tokens=200) for i in range(5)))
        await router.read()
        router.call.cancel()
        await target.all_free()


async def test_a_batch_policy_bounds_what_runs(serve_target):
    async with serve_target() as target:
        router = await target.connect()
        await router.send(batch_policy=target_pb2.BatchPolicy(max_running_requests=2, chunked_prefill_size=4))
        await router.submit(*(submission(i, random_prompt(9)) for i in range(3)))
        got = await router.finish(0, 1, 2)
        assert [g.returned is not None for g in got] == [False, False, True]
        assert router.load.max_running_requests == 2


async def test_the_last_round_can_be_inspected_and_watched(serve_target):
    async with serve_target() as target:
        router = await target.connect()
        watch = target.stub.WatchRounds(target_pb2.TargetServiceWatchRoundsRequest())
        await watch.initial_metadata()
        await router.submit(submission(1, random_prompt(9), max_tokens=60))
        seen = await asyncio.wait_for(watch.read(), WAIT_S)
        await router.finish(1)
        watch.cancel()
        reply = await target.stub.InspectRound(target_pb2.TargetServiceInspectRoundRequest())
        view = reply.round
        assert seen.round.step <= view.step
        assert list(view.verify_input.num_tokens_per_req) == [1]
        assert list(view.verify_input.parents) == [-1]
        assert list(view.verify_input.positions) == list(view.verify_input.base_committed_len)
        assert list(view.verify_output.verified_id) == router.got[1].tokens[-1:]
        assert set(view.timings_ms) == {"wait", "plan", "forward", "sample", "host", "commit", "extend"}
        brief = await target.stub.InspectRound(target_pb2.TargetServiceInspectRoundRequest(brief=True))
        for name in ("kv_indptr", "kv_indices"):
            view.extend_input.ClearField(name)
        assert brief.round == view


async def test_a_step_of_prompts_alone_does_not_replace_the_last_round_of_decoding(serve_target):
    async with serve_target() as target:
        router = await target.connect()
        await router.submit(submission(1, random_prompt(9)))
        await router.finish(1)
        await router.submit(submission(2, random_prompt(9), max_tokens=1))
        await router.finish(2)
        reply = await target.stub.InspectRound(target_pb2.TargetServiceInspectRoundRequest())
        assert list(reply.round.verify_output.verified_id) == router.got[1].tokens[-1:]


async def test_a_bug_in_reading_a_stream_ends_it_and_is_logged(serve_target, monkeypatch, caplog):
    async with serve_target() as target:
        router = await target.connect()
        monkeypatch.setattr("target_service.codec.Edge.decode", None)
        await router.send(cancel=target_pb2.Cancel(requests=[1]))
        assert await router.status() is grpc.StatusCode.UNAVAILABLE
        assert "reading a router's stream failed" in caplog.text


async def test_get_info_shows_the_target_and_its_load(serve_target):
    async with serve_target() as target:
        router = await target.connect()
        await router.submit(submission(1, [5]))
        await router.finish(1)
        reply = await target.stub.GetInfo(target_pb2.TargetServiceGetInfoRequest())
        assert reply.info == router.info
        assert reply.load.num_pages == 512
