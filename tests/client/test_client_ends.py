"""How an answer of the Python clients ends where it does not end well: a router that is gone, cancellation, a gap."""

from __future__ import annotations

import asyncio
import threading

import grpc
import pytest

from client import AsyncPacelineClient, DeadlineError, PacelineClient, RequestCancelledError
from client.errors import error_from_status
from paceline.errors import UnavailableError, WireError
from paceline.v1 import common_pb2, router_pb2
from tests.support.waiting import WAIT_S


def first_token_then_wait(request, context):
    stopped = threading.Event()
    context.add_callback(stopped.set)
    yield router_pb2.GenerateResponse(text="a", token_ids=[5], prompt_ids=[1])
    stopped.wait(WAIT_S)


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
