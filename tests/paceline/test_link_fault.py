"""gRPC's words on a failed connection, as somebody can act on them."""

from __future__ import annotations

import socket

import grpc
import pytest

from paceline.link_fault import link_fault
from paceline.plumbing import Plumbing
from paceline.rpc import RpcServer
from paceline.v1 import target_pb2, target_pb2_grpc

HUNG = "what listens at a:1 says nothing: see whether its process hangs"


async def explained(address: str, *, timeout_s: float | None = None) -> str:
    plumbing = Plumbing()
    async with plumbing.open_channel(address) as channel:
        stub: target_pb2_grpc.TargetServiceAsyncStub = target_pb2_grpc.TargetServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetInfo(target_pb2.TargetServiceGetInfoRequest(), timeout=timeout_s)
    return await plumbing.explain(address, caught.value)


async def test_an_address_without_a_process_answers_nothing() -> None:
    assert await explained("127.0.0.1:1") == "nothing answers there"


async def test_a_service_of_another_kind_is_told_from_one_that_is_down() -> None:
    server = RpcServer("paceline.v1.DraftService")
    port = await server.start("127.0.0.1", 0)
    assert "does not know this call: it is of another kind" in await explained(f"127.0.0.1:{port}")
    await server.stop(0)


async def test_a_process_that_takes_connections_and_says_nothing_may_hang() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert "took longer than allowed: see whether it hangs" in await explained(address, timeout_s=0.05)


@pytest.mark.parametrize(
    ("details", "words"),
    [
        ("failed to connect to all addresses; last error: attempt timed out before receiving SETTINGS frame", HUNG),
        ("Stream removed (ping timeout)", "the connection to a:1 was given up, for pings went unanswered"),
        ("Stream removed (recvmsg:Connection reset by peer (104))", "the connection to a:1 broke"),
        ("Cancelling all calls", "the connection to a:1 broke"),
        (
            "errors resolving a:1: [field:hostname lookup error:not found]",
            "the resolver finds no host at a:1",
        ),
    ],
)
def test_what_grpc_says_has_its_meaning(details: str, words: str) -> None:
    assert link_fault(grpc.StatusCode.UNAVAILABLE, details, "a:1").startswith(words)


@pytest.mark.parametrize(
    ("code", "details"),
    [
        (grpc.StatusCode.UNAVAILABLE, "the target is draining"),
        (grpc.StatusCode.UNAVAILABLE, "the engine thread ended: rank 0 is gone: [Errno 104] Connection reset by peer"),
        (grpc.StatusCode.UNKNOWN, "Unexpected <class 'ConnectionResetError'>: [Errno 104] Connection reset by peer"),
        (grpc.StatusCode.INVALID_ARGUMENT, "failed to connect is no role; set it to user, assistant or system"),
        (grpc.StatusCode.FAILED_PRECONDITION, "Deadline Exceeded is none of this model's stop words"),
    ],
)
def test_what_a_service_says_is_left_to_it(code: grpc.StatusCode, details: str) -> None:
    assert link_fault(code, details, "a:1") == ""


async def test_a_fault_of_a_services_own_is_not_taken_for_the_connections() -> None:
    class Failing(target_pb2_grpc.TargetServiceServicer):
        async def GetInfo(self, request: object, context: object) -> target_pb2.TargetServiceGetInfoResponse:
            raise ConnectionResetError("Connection reset by peer")

    server = grpc.aio.server()
    target_pb2_grpc.add_TargetServiceServicer_to_server(Failing(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    assert "ConnectionResetError" in await explained(f"127.0.0.1:{port}")
    await server.stop(0)
