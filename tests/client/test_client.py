"""The Python clients against a scripted router: what they send, what they give, how they fail."""

from __future__ import annotations

import asyncio
import threading

import grpc
import pytest

from client import (
    AsyncPacelineClient,
    DeadlineError,
    GenerateOptions,
    Message,
    PacelineClient,
    RequestCancelledError,
    Sampling,
    ServiceFailureError,
)
from client.errors import error_from_status
from paceline.errors import (
    CapacityError,
    InvalidInputError,
    MismatchError,
    PacelineError,
    UnavailableError,
    UnsupportedFieldError,
    WireError,
)
from paceline.types import FinishReason, TreeShape
from paceline.v1 import common_pb2, router_pb2
from tests.support.waiting import WAIT_S

HELLO_IDS = (5, 6, 7, 0)


def first_token_then_wait(request, context):
    stopped = threading.Event()
    context.add_callback(stopped.set)
    yield router_pb2.GenerateResponse(text="a", token_ids=[5], prompt_ids=[1])
    stopped.wait(WAIT_S)


def test_deltas_come_as_the_router_sent_them_and_result_joins_them(router):
    with PacelineClient(router.address) as client:
        generation = client.generate("Say hello")
        texts = [delta.text for delta in generation]
        completion = generation.result()
    assert texts == ["Hel", "lo", ""]
    assert (completion.text, completion.token_ids, completion.prompt_ids) == ("Hello", HELLO_IDS, (1, 2, 3))
    assert completion.finish_reason is FinishReason.STOP
    assert completion.stats.mean_accepted_length == 2.5
    assert 0 < completion.first_token_s <= completion.last_token_s


async def test_the_async_client_gives_the_same_completion(router):
    async with AsyncPacelineClient(router.address) as client:
        generation = client.generate("Say hello")
        offsets = [delta.offset async for delta in generation]
        completion = await generation.result()
    assert offsets == [0, 2, 3]
    assert (completion.text, completion.token_ids) == ("Hello", HELLO_IDS)


def test_each_kind_of_prompt_travels_in_its_own_field(router):
    with PacelineClient(router.address) as client:
        for prompt in ("plain text", [1, 2, 3], [Message("user", "hi")], []):
            client.generate(prompt).result()
    text, ids, chat, empty = router.requests
    assert text.text == "plain text"
    assert list(ids.token_ids.ids) == [1, 2, 3]
    assert (chat.chat.messages[0].role, chat.chat.messages[0].content) == ("user", "hi")
    assert empty.WhichOneof("input") == "token_ids"


def test_a_value_left_out_is_left_to_the_service(router):
    with PacelineClient(router.address) as client:
        client.generate("x").result()
        client.generate("x", sampling=Sampling(temperature=0.0, seed=0, stop_token_ids=(4,), ignore_eos=True)).result()
    bare, given = (request.sampling_params for request in router.requests)
    assert not any(bare.HasField(name) for name in ("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed"))
    assert given.HasField("temperature")
    assert given.HasField("seed")
    assert (list(given.stop_token_ids), given.ignore_eos) == ([4], True)


def test_a_requests_own_word_on_speculation_travels(router):
    with PacelineClient(router.address) as client:
        for speculation in (None, False, TreeShape(5, 4, 16)):
            client.generate("x", options=GenerateOptions(speculation=speculation)).result()
    policy, off, tree = router.requests
    assert not policy.HasField("speculation")
    assert off.speculation.disable
    assert (tree.speculation.shape.num_steps, tree.speculation.shape.num_draft_tokens) == (5, 16)


def test_how_a_request_wants_to_be_served_travels_where_it_is_said(router):
    with PacelineClient(router.address) as client:
        for options in (GenerateOptions(), GenerateOptions(tenant="a", priority=0, deadline_s=1.5)):
            client.generate("x", options=options).result()
    bare, given = router.requests
    assert not any(bare.HasField(name) for name in ("tenant", "priority", "deadline_s"))
    assert given.HasField("priority")
    assert (given.tenant, given.priority, given.deadline_s) == ("a", 0, 1.5)


@pytest.mark.parametrize("hint", [None, "1500", "soon"])
async def test_a_full_services_retry_hint_is_in_the_error(router, hint):
    def refuse(request, context):
        if hint is not None:
            context.set_trailing_metadata((("retry-after-ms", hint),))
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        yield

    router.script = refuse
    expected = 1.5 if hint == "1500" else None
    with PacelineClient(router.address) as client, pytest.raises(CapacityError) as caught:
        client.generate("x").result()
    assert caught.value.retry_after_s == expected
    async with AsyncPacelineClient(router.address) as client:
        with pytest.raises(CapacityError) as caught:
            await client.generate("x").result()
    assert caught.value.retry_after_s == expected


@pytest.mark.parametrize(
    "values",
    [{"max_tokens": 0}, {"max_tokens": -1}, {"temperature": float("nan")}, {"top_p": 0.0}, {"seed": 2**64}],
)
def test_a_value_out_of_its_range_is_refused_before_it_is_sent(values):
    name = next(iter(values))
    with pytest.raises(InvalidInputError, match=name):
        Sampling(**values)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidInputError),
        (grpc.StatusCode.UNIMPLEMENTED, UnsupportedFieldError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, CapacityError),
        (grpc.StatusCode.FAILED_PRECONDITION, MismatchError),
        (grpc.StatusCode.UNAVAILABLE, UnavailableError),
        (grpc.StatusCode.INTERNAL, ServiceFailureError),
    ],
)
async def test_a_status_becomes_a_typed_error_with_the_services_message(router, code, kind):
    def refuse(request, context):
        context.abort(code, "top_p is 7; it must be at most 1")
        yield

    router.script = refuse
    with PacelineClient(router.address) as client, pytest.raises(kind, match="top_p is 7"):
        client.generate("x").result()
    async with AsyncPacelineClient(router.address) as client:
        with pytest.raises(kind, match="top_p is 7"):
            await client.generate("x").result()


class Broken(grpc.RpcError):
    """As gRPC reports a peer that was killed."""

    def code(self):
        return grpc.StatusCode.UNAVAILABLE

    def details(self):
        return "Stream removed (Socket closed)"


def test_a_router_that_dies_in_mid_answer_is_named():
    error = error_from_status(Broken(), "127.0.0.1:7100")
    assert isinstance(error, UnavailableError)
    assert "the connection to 127.0.0.1:7100 broke" in str(error)


async def test_an_address_where_nothing_answers_says_what_to_do():
    with PacelineClient("127.0.0.1:1") as client:
        with pytest.raises(UnavailableError, match=r"nothing answers at 127\.0\.0\.1:1: .*wait until serve says"):
            client.generate("x").result()
        with pytest.raises(UnavailableError):
            client.info()
    async with AsyncPacelineClient("127.0.0.1:1") as client:
        with pytest.raises(UnavailableError, match="paceline serve"):
            await client.info()


def test_leaving_the_context_of_a_generation_cancels_it_on_the_router(router):
    router.script = first_token_then_wait
    with PacelineClient(router.address) as client:
        with client.generate("x") as generation:
            assert next(generation).token_ids == (5,)
        assert router.ended.wait(WAIT_S)


def test_a_cancelled_generation_raises_where_it_is_read(router):
    router.script = first_token_then_wait
    with PacelineClient(router.address) as client:
        generation = client.generate("x")
        next(generation)
        generation.cancel()
        with pytest.raises(RequestCancelledError, match=r"^the request was cancelled$"):
            generation.result()


async def test_a_cancelled_async_generation_raises_a_request_error_not_the_tasks(router):
    router.script = first_token_then_wait
    async with AsyncPacelineClient(router.address) as client:
        generation = client.generate("x")
        await anext(generation)
        generation.cancel()
        with pytest.raises(RequestCancelledError):
            await generation.result()


async def test_closing_the_async_client_is_no_cancellation_of_the_task_that_reads(router):
    router.script = first_token_then_wait
    client = AsyncPacelineClient(router.address)
    generation = client.generate("x")
    await anext(generation)
    reader = asyncio.create_task(generation.result())
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises(RequestCancelledError, match=r"^the request was cancelled$"):
        await reader


async def test_cancelling_the_task_that_reads_cancels_the_request(router):
    router.script = first_token_then_wait
    async with AsyncPacelineClient(router.address) as client:
        generation = client.generate("x")
        await anext(generation)
        reader = asyncio.create_task(generation.result())
        await asyncio.sleep(0)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert await asyncio.to_thread(router.ended.wait, WAIT_S)


def test_closing_the_client_ends_what_still_runs(router):
    router.script = first_token_then_wait
    client = PacelineClient(router.address)
    next(client.generate("x"))
    client.close()
    assert router.ended.wait(WAIT_S)


def test_a_request_that_outlasts_its_time_raises_a_deadline_error(router):
    router.script = first_token_then_wait
    with PacelineClient(router.address, request_timeout_s=0.2) as client, pytest.raises(DeadlineError):
        client.generate("x").result()


def test_a_gap_in_the_tokens_is_an_error_not_a_shorter_answer(router):
    def skip_one(request, context):
        yield router_pb2.GenerateResponse(token_ids=[5])
        yield router_pb2.GenerateResponse(token_ids=[7], offset=2)

    router.script = skip_one
    with PacelineClient(router.address) as client, pytest.raises(WireError, match="from 2 on came where 1"):
        client.generate("x").result()


@pytest.mark.parametrize("finish", [common_pb2.FINISH_REASON_UNSPECIFIED, common_pb2.FINISH_REASON_STOP])
def test_a_stream_that_ends_short_is_an_error(router, finish):
    def stop_early(request, context):
        yield router_pb2.GenerateResponse(
            token_ids=[5], finish_reason=finish, usage=router_pb2.Usage(completion_tokens=2)
        )

    router.script = stop_early
    with PacelineClient(router.address) as client, pytest.raises(WireError):
        client.generate("x").result()


def test_info_names_the_model(router):
    with PacelineClient(router.address) as client:
        assert client.info().info.model_name == "scripted"


def test_every_typed_error_has_an_exit_code_that_is_not_zero():
    kinds = set(PacelineError.__subclasses__())
    assert {RequestCancelledError, DeadlineError, ServiceFailureError} <= kinds
    assert all(kind.exit_code > 0 for kind in kinds)
