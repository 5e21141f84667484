"""An address with a service of another kind than the one that was named there."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio

from paceline.plumbing import Plumbing
from paceline.rpc import RpcServer
from paceline.service_kind import LOST_STATUS, service_kind
from paceline.v1 import target_pb2, target_pb2_grpc
from tests.support.waiting import WAIT_S

NO_TARGET = "what answers there is a draft, not a target: mend the router's --targets"


@pytest_asyncio.fixture
async def draft() -> AsyncIterator[str]:
    """The address of a draft, not ready yet."""
    server = RpcServer("paceline.v1.DraftService")
    yield f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    await server.stop(0)


async def greet(stub: target_pb2_grpc.TargetServiceAsyncStub) -> None:
    call = stub.Serve(timeout=WAIT_S)
    await call.write(target_pb2.ServeRequest(hello=target_pb2.ServeHello(router="r")))
    await call.read()


async def served(plumbing: Plumbing, address: str) -> str:
    """Why a target's stream there ends."""
    async with plumbing.open_channel(address) as channel:
        stub: target_pb2_grpc.TargetServiceAsyncStub = target_pb2_grpc.TargetServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await greet(stub)
    return await plumbing.explain(address, caught.value, wanted="target")


def lost() -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), LOST_STATUS)


async def test_a_stream_to_a_draft_ends_with_the_same_words_however_its_first_write_goes(draft: str) -> None:
    plumbing = Plumbing()
    assert {await served(plumbing, draft) for _ in range(60)} == {NO_TARGET}


async def test_a_call_without_a_status_is_told_by_who_is_there(draft: str) -> None:
    plumbing = Plumbing()
    assert await plumbing.explain(draft, lost(), wanted="target") == NO_TARGET
    broke = "the connection broke: see whether the process there still runs"
    assert await plumbing.explain(draft, lost(), wanted="draft") == broke
    assert await plumbing.explain("127.0.0.1:1", lost(), wanted="draft") == broke


async def test_what_is_no_service_of_ours_is_said_to_be_none() -> None:
    server = grpc.aio.server()
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    words = "what answers there is no service of Paceline, not a target: mend the router's --targets"
    assert await served(Plumbing(), address) == words
    await server.stop(0)


async def test_a_port_for_health_alone_is_told_from_the_service() -> None:
    server = RpcServer("paceline.v1.TargetService")
    address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    assert "a target of another version, or its --health-port" in await served(Plumbing(), address)
    await server.stop(0)


def test_nobody_at_an_address_is_not_taken_for_a_stranger() -> None:
    assert service_kind("127.0.0.1:1", None) is None


async def test_a_port_that_hangs_up_is_not_taken_for_one_that_nobody_has() -> None:
    """As a draft's --round-port does, which reads a token."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        address = f"127.0.0.1:{listener.getsockname()[1]}"

        async def hang_up() -> None:
            loop = asyncio.get_running_loop()
            while True:
                taken, _ = await loop.sock_accept(listener)
                await loop.sock_recv(taken, 1)
                taken.close()

        hanging_up = asyncio.create_task(hang_up())
        said = await served(Plumbing(), address)
        hanging_up.cancel()
    assert said.startswith("what listens there hangs up without a word: name a service's --port, not a draft's --round")
