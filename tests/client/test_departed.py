"""A service that ends in mid-answer is told from a connection that broke alone."""

from __future__ import annotations

import contextlib
import socket

import pytest

from client import AsyncPacelineClient, PacelineClient
from client.departed import has_ended
from paceline.errors import UnavailableError
from paceline.v1 import router_pb2
from tests.support.scripted_router import running_router
from tests.support.waiting import WAIT_S


@pytest.fixture
def ending():
    """A router, in its first token, and the end of it."""
    with contextlib.ExitStack() as stack:
        router = stack.enter_context(running_router())

        def first_token_then_wait(request, context):
            yield router_pb2.GenerateResponse(text="a", token_ids=[5], prompt_ids=[1])
            router.ended.wait(WAIT_S)

        router.script = first_token_then_wait
        yield router.address, stack.close


def test_a_router_that_ends_in_mid_answer_is_said_to_have_ended(ending):
    address, end = ending
    with PacelineClient(address) as client:
        generation = client.generate("x")
        next(iter(generation))
        end()
        with pytest.raises(UnavailableError) as raised:
            generation.result()
    assert str(raised.value) == f"the service at {address} has ended in mid-answer: ask again once it runs again"


async def test_so_it_is_on_an_event_loop(ending):
    address, end = ending
    async with AsyncPacelineClient(address) as client:
        generation = client.generate("x")
        await anext(aiter(generation))
        end()
        with pytest.raises(UnavailableError, match="has ended in mid-answer"):
            await generation.result()


def test_who_still_listens_has_not_ended():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert not has_ended(address)
    assert has_ended(address)
    assert not has_ended("unix:/run/router")
