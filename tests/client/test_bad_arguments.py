"""Arguments that fit nowhere and addresses of something else: the Python clients refuse them by name."""

from __future__ import annotations

import grpc
import grpc.aio
import numpy as np
import pytest
from grpc.aio import Metadata
from prometheus_client import CollectorRegistry, start_http_server

from client import AsyncPacelineClient, Credentials, GenerateOptions, Message, PacelineClient, Sampling
from client.errors import error_from_status
from paceline.errors import ForbiddenError, InvalidInputError, UnavailableError
from paceline.rpc import MAX_MESSAGE_BYTES, RpcServer
from paceline.types import TreeShape


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (5, "prompt is 5; it must be a str, or a list of token ids or of client.Message"),
        (None, "prompt is None"),
        (b"bytes", "prompt is b'bytes'"),
        ([-1], r"prompt\[0\] is -1"),
        ([1, 2**33], r"prompt\[1\] is 8589934592"),
        ([1.5], r"prompt\[0\] is 1.5"),
        (["word"], r"prompt\[0\] is 'word'; it must be a client.Message or a token id"),
        ([{"role": "user", "content": "hi"}], r"prompt\[0\] is {'role'.*client.Message"),
        ([Message("user", "hi"), 5], "mixes chat messages"),
        ([Message("user", 5)], r"prompt\[0\].content is 5; it must be a str"),
        ("\ud800", r"prompt is '\\ud800'; it must be text that UTF-8 can carry"),
    ],
)
def test_a_prompt_that_no_field_can_hold_is_refused(router, prompt, words):
    with PacelineClient(router.address) as client, pytest.raises(InvalidInputError, match=words):
        client.generate(prompt)
    assert router.requests == []


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Sampling(max_tokens="x"), "max_tokens is 'x'; it must be a whole number"),
        (lambda: Sampling(max_tokens=2**40), "max_tokens is 1099511627776; .* below 2..32"),
        (lambda: Sampling(top_k=True), "top_k is True"),
        (lambda: Sampling(temperature="hot"), "temperature is 'hot'; it must be a number"),
        (lambda: Sampling(stop_token_ids=5), "stop_token_ids is 5; it must be a tuple"),
        (lambda: Sampling(stop_token_ids=(1, "a")), r"stop_token_ids\[1\] is 'a'; it must be a token id"),
        (lambda: Sampling(ignore_eos="no"), "ignore_eos is 'no'"),
        (lambda: GenerateOptions(speculation=True), "speculation is True; it must be None"),
        (lambda: GenerateOptions(speculation=(5, 4, 16)), "speculation is .5, 4, 16.; .* TreeShape"),
        (lambda: GenerateOptions(tenant=7), "tenant is 7; it must be a str"),
        (lambda: GenerateOptions(priority=2**40), "priority is 1099511627776; it must be a whole number, -10 to 10"),
        (lambda: GenerateOptions(deadline_s="soon"), "deadline_s is 'soon'; it must be a number of seconds"),
        (lambda: Credentials(tls="ca.pem"), "tls is 'ca.pem'; it must be a paceline.tls.TlsFiles"),
        (lambda: Credentials(api_key="two\nlines"), "api_key does not fit a header"),
        (lambda: Credentials(api_key=5), "api_key does not fit a header"),
        (lambda: TreeShape("5", 4, 16), "num_steps is '5'; it must be a whole number"),
    ],
)
def test_a_value_of_another_type_is_refused_by_its_field(make, words):
    with pytest.raises(InvalidInputError, match=words):
        make()


def test_numpys_numbers_are_numbers(router):
    with PacelineClient(router.address) as client:
        sampling = Sampling(max_tokens=np.int64(4), temperature=np.float32(0.5))
        client.generate(np.array([1, 2]), sampling=sampling).result()
    assert list(router.requests[0].token_ids.ids) == [1, 2]
    assert router.requests[0].sampling_params.max_tokens == 4


@pytest.mark.parametrize("kind", [PacelineClient, AsyncPacelineClient])
@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"address": 7100}, "the router's address is 7100; it must be a str, host:port"),
        ({"address": ""}, "the router's address is ''; it must be host:port, like 127.0.0.1:7100, without http://"),
        ({"address": "http://127.0.0.1:7100"}, "address is 'http://127.0.0.1:7100'"),
        ({"address": "127.0.0.1"}, "address is '127.0.0.1'"),
        ({"address": "::1:7100"}, "address is '::1:7100'"),
        ({"address": "127.0.0.1:99999"}, "address is '127.0.0.1:99999'; .*; a port is 1 to 65535"),
        ({"request_timeout_s": "5"}, "request_timeout_s is '5'"),
        ({"request_timeout_s": float("nan")}, "request_timeout_s is nan"),
        ({"credentials": "key"}, "credentials is 'key'; it must be a client.Credentials"),
    ],
)
async def test_a_client_of_no_address_is_refused_before_it_connects(kind, values, words):
    with pytest.raises(InvalidInputError, match=words):
        kind(**values)


@pytest.mark.parametrize("address", ["[::1]:7100", "router:7100", "dns:///paceline-router:7100", "unix:/run/router"])
def test_every_address_that_grpc_knows_is_taken(address):
    PacelineClient(address).close()


async def test_a_request_is_checked_by_both_clients(router):
    async with AsyncPacelineClient(router.address) as client:
        with pytest.raises(InvalidInputError, match=r"sampling is 5; it must be a client\.Sampling"):
            client.generate("x", sampling=5)
        with pytest.raises(InvalidInputError, match="options is 'fast'"):
            client.generate("x", options="fast")
        with pytest.raises(InvalidInputError, match="timeout_s is 'soon'"):
            await client.info(timeout_s="soon")


async def test_a_service_that_is_no_router_is_named():
    server = RpcServer("paceline.v1.TargetService")
    address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    async with AsyncPacelineClient(address) as client:
        with pytest.raises(InvalidInputError, match=f"{address} is a target service.*a router listens on 7100"):
            await client.info()
        with pytest.raises(InvalidInputError, match="is a target service"):
            await client.generate("x").result()
    await server.stop(0)


def test_a_port_that_speaks_no_grpc_is_told_from_one_where_nothing_listens():
    server, thread = start_http_server(0, addr="127.0.0.1", registry=CollectorRegistry())
    words = "speaks no gRPC: name a service's --port"
    with PacelineClient(f"127.0.0.1:{server.server_port}") as client, pytest.raises(UnavailableError, match=words):
        client.info()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        (grpc.StatusCode.UNIMPLEMENTED, 404, UnavailableError),
        (grpc.StatusCode.UNAVAILABLE, 502, UnavailableError),
        (grpc.StatusCode.PERMISSION_DENIED, 403, ForbiddenError),
    ],
)
def test_a_proxy_that_answers_itself_is_named(code, status, kind):
    said = grpc.aio.AioRpcError(code, Metadata(), Metadata(), f"Received http2 header with status: {status}")
    error = error_from_status(said, "a:1")
    assert type(error) is kind
    assert f"what answers at a:1 speaks no gRPC, but HTTP (status {status}): name a service's --port" in str(error)


def test_a_prompt_that_no_message_can_hold_is_the_callers_error(router):
    with PacelineClient(router.address) as client, pytest.raises(InvalidInputError, match="give a shorter prompt"):
        client.generate("x" * (MAX_MESSAGE_BYTES + 1)).result()


def test_a_closed_client_says_so(router):
    client = PacelineClient(router.address)
    client.close()
    client.close()
    for ask in (lambda: client.generate("x"), client.info):
        with pytest.raises(InvalidInputError, match=f"the client of {router.address} was closed; make a new one"):
            ask()


async def test_a_closed_client_on_an_event_loop_says_so(router):
    async with AsyncPacelineClient(router.address) as client:
        pass
    with pytest.raises(InvalidInputError, match="was closed"):
        client.generate("x")
    with pytest.raises(InvalidInputError, match="was closed"):
        await client.info()


def test_a_client_for_an_event_loop_is_made_on_one():
    with pytest.raises(InvalidInputError, match="no event loop runs; make it in a coroutine, or use PacelineClient"):
        AsyncPacelineClient("a:1")
