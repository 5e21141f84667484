"""What a peer can get wrong ends its own stream with a clear status, and nobody else notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import grpc
import pytest
import torch

from draft_service.replies import SessionCode
from engine.wire import to_raw
from paceline.round_codec import encode_extend, encode_tensor
from paceline.types import SamplingParams
from paceline.v1 import common_pb2, draft_pb2, verify_pb2
from tests.support.draft_peer import Part, Running, Target, columns, sync_rows
from tests.support.tiny_draft import HIDDEN, TREE, VOCAB, Alone, Prompt, assert_same_tree, random_prompt
from tests.support.waiting import WAIT_S

Serve = Callable[..., AbstractAsyncContextManager[Running]]


def sound_extend() -> verify_pb2.ExtendInput:
    return encode_extend(columns([Part(1, 1, 0, random_prompt(4))]), 7)


def broken_extends() -> dict[str, tuple[verify_pb2.ExtendInput, str]]:
    """By what is wrong: the message, and what the status must name."""
    cases = {}

    def case(name: str, says: str) -> verify_pb2.ExtendInput:
        message = sound_extend()
        cases[name] = (message, says)
        return message

    case("bytes missing", "bytes").hidden_states.data = b"\0" * 7
    case("another width", "32 wide").hidden_states.CopyFrom(encode_tensor(to_raw(torch.zeros(4, HIDDEN + 1))))
    case("integers", "int64").hidden_states.CopyFrom(encode_tensor(to_raw(torch.zeros(4, HIDDEN, dtype=torch.int64))))
    case("one dimension", "shape").hidden_states.CopyFrom(encode_tensor(to_raw(torch.zeros(4 * HIDDEN))))
    case("no dtype", "dtype").hidden_states.dtype = common_pb2.DTYPE_UNSPECIFIED
    case("a huge shape", "bytes").hidden_states.shape[:] = [4, 2**32 - 1]
    case("a foreign token", str(VOCAB)).verified_id[2] = VOCAB
    case("no token at all", "token").verified_id[0] = 2**32 - 1
    case("fewer tokens", "verified_id").verified_id.pop()
    case("fewer rounds", "round").round.pop()
    case("too many rows", "verified_id").num_tokens_per_req[0] = 2**32 - 1
    case("no steps", "num_steps").num_steps[0] = 0
    case("a wide beam", "eagle_topk").eagle_topk[0] = 65
    case("too many nodes", "num_draft_tokens").num_draft_tokens[0] = 2**31
    case("another incarnation", "incarnation").incarnation = 9
    return cases


async def ends_with(call: grpc.aio.StreamStreamCall) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_to_end(call)
    return caught.value


async def read_to_end(call: grpc.aio.StreamStreamCall) -> None:
    while await asyncio.wait_for(call.read(), WAIT_S) is not grpc.aio.EOF:
        pass


async def bystander(running: Running) -> Target:
    target = await running.connect(incarnation=1000)
    await target.send(open=[(1, 64)])
    await target.ask(1, 1, random_prompt(6))
    return target


@pytest.mark.parametrize("name", broken_extends())
async def test_a_broken_extend_ends_its_stream_alone(serve: Serve, name: str) -> None:
    message, says = broken_extends()[name]
    async with serve() as running:
        other, target = await bystander(running), await running.connect()
        await target.send(open=[(1, 64)])
        await target.call.write(draft_pb2.SpeculateRequest(extend=message))
        error = await ends_with(target.call)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert says in (error.details() or "")
        await other.ask(1, 2, random_prompt(9), base_len=6)
        await other.end()
        await running.free_pages(running.service.info.num_pages)


async def test_an_extend_of_no_session_changes_nothing(serve: Serve) -> None:
    async with serve() as running:
        target = await bystander(running)
        nothing = verify_pb2.ExtendInput(incarnation=1000, hidden_states=encode_tensor(to_raw(torch.zeros(0, HIDDEN))))
        await target.call.write(draft_pb2.SpeculateRequest(extend=nothing))
        await target.ask(1, 2, random_prompt(9), base_len=6)
        await target.end()


@pytest.mark.parametrize("method", ["Speculate", "Sync"])
async def test_random_bytes_end_their_stream_alone(serve: Serve, method: str) -> None:
    noise = torch.randint(0, 256, (64, 40), generator=torch.Generator().manual_seed(5), dtype=torch.uint8)

    async def messages(running: Running, data: bytes) -> AsyncIterator[bytes]:
        yield draft_pb2.SpeculateRequest(hello=running.hello(7)).SerializeToString()
        yield data

    async with serve() as running:
        other = await bystander(running)
        raw = running.channel.stream_stream(f"/paceline.v1.DraftService/{method}")
        for row in noise[:8]:
            call = raw(messages(running, bytes([0xFF, *row.tolist()])))
            error = await ends_with(call)
            assert error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL)
        await other.ask(1, 2, random_prompt(9), base_len=6)


@pytest.mark.parametrize("field", ["feature_id", "head_fingerprint"])
@pytest.mark.parametrize("method", ["Speculate", "Sync"])
async def test_another_head_is_refused_with_both_values(serve: Serve, field: str, method: str) -> None:
    async with serve() as running:
        hello = running.hello(7)
        setattr(hello, field, "abc123")
        call = getattr(running.stub, method)()
        request = draft_pb2.SpeculateRequest if method == "Speculate" else draft_pb2.SyncRequest
        await call.write(request(hello=hello))
        error = await ends_with(call)
        assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "abc123" in (error.details() or "")
        assert getattr(running.service.info, field) in (error.details() or "")


@pytest.mark.parametrize("method", ["Speculate", "Sync"])
async def test_a_stream_without_a_hello_is_refused(serve: Serve, method: str) -> None:
    async with serve() as running:
        call = getattr(running.stub, method)()
        request = draft_pb2.SpeculateRequest() if method == "Speculate" else sync_rows(1, 0, random_prompt(2))
        await call.write(request)
        error = await ends_with(call)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "hello" in (error.details() or "")


async def test_a_second_hello_is_refused(serve: Serve) -> None:
    async with serve() as running:
        target = await running.connect()
        await target.call.write(draft_pb2.SpeculateRequest(hello=running.hello(7)))
        assert (await ends_with(target.call)).code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("opening", "code", "says"),
    [
        (draft_pb2.OpenSession(session=5), grpc.StatusCode.INVALID_ARGUMENT, "max_len of session 5"),
        (
            draft_pb2.OpenSession(session=5, max_len=9, sampling_params=common_pb2.SamplingParams(top_p=3)),
            grpc.StatusCode.INVALID_ARGUMENT,
            "session 5: top_p is 3",
        ),
        (
            draft_pb2.OpenSession(session=5, max_len=9, sampling_params=common_pb2.SamplingParams(n=2)),
            grpc.StatusCode.UNIMPLEMENTED,
            "session 5: n is not supported",
        ),
    ],
)
async def test_an_unsound_open_is_refused(
    serve: Serve, opening: draft_pb2.OpenSession, code: grpc.StatusCode, says: str
) -> None:
    async with serve() as running:
        target = await running.connect()
        await target.call.write(draft_pb2.SpeculateRequest(open=[opening]))
        error = await ends_with(target.call)
        assert error.code() is code
        assert says in (error.details() or "")


async def test_rows_past_the_reserved_length_are_refused_and_free_the_session(serve: Serve) -> None:
    async with serve() as running:
        target, sync = await running.connect(), await running.sync()
        await target.send(open=[(1, 8), (2, 8)], parts=[Part(1, 1, 0, random_prompt(9))])
        assert (await target.status(1, 1)).code == SessionCode.FULL
        await target.status(2)
        await sync.write(sync_rows(2, 0, random_prompt(9)))
        assert (await sync.read()).code == SessionCode.FULL
        await running.free_pages(running.service.info.num_pages)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e38])
async def test_features_that_are_no_numbers_harm_no_other_session(
    serve: Serve, alone: Alone, value: float, temperature: float
) -> None:
    good, sampling = random_prompt(9), SamplingParams(temperature=temperature)
    bad = Prompt(random_prompt(9).tokens, torch.full((9, HIDDEN), value))
    async with serve() as running:
        target = await running.connect()
        await target.send(open=[(1, 64), (2, 64)], sampling=sampling)
        await target.send(parts=[Part(1, 1, 0, bad), Part(2, 1, 0, good)])
        await target.proposal(1, 1)
        assert (await target.proposal(2, 1)).tree.num_nodes == TREE.num_draft_tokens
        await target.send(release=[1, 2], open=[(3, 64)])
        assert_same_tree(await target.ask(3, 1, good), alone.tree(good))


async def test_unknown_sessions_are_answered(serve: Serve) -> None:
    async with serve() as running:
        target, sync = await running.connect(), await running.sync()
        await target.send(parts=[Part(5, 3, 0, random_prompt(2))], release=[6])
        assert (await target.status(5, 3)).code == SessionCode.UNKNOWN
        await sync.write(sync_rows(5, 0, random_prompt(2)))
        response = await sync.read()
        assert (response.session, response.code) == (5, SessionCode.UNKNOWN)


@pytest.mark.parametrize("rows", [Prompt(random_prompt(2).tokens, torch.zeros(3, HIDDEN)), random_prompt(0)])
async def test_unsound_bulk_rows_end_the_sync_stream(serve: Serve, rows: Prompt) -> None:
    async with serve() as running:
        target, sync = await running.connect(), await running.sync()
        await target.send(open=[(1, 64)])
        await target.status(1)
        await sync.write(sync_rows(1, 0, rows))
        assert (await ends_with(sync)).code() is grpc.StatusCode.INVALID_ARGUMENT
        await target.ask(1, 1, random_prompt(5))
        assert not running.service._front.hub._tickets, "nothing waits for an answer that cannot come"


async def test_bulk_rows_of_more_than_a_megabyte_are_refused(serve: Serve) -> None:
    async with serve() as running:
        sync = await running.sync()
        await sync.write(sync_rows(1, 0, random_prompt((1 << 20) // (4 * HIDDEN) + 1)))
        error = await ends_with(sync)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert str(1 << 20) in (error.details() or "")
