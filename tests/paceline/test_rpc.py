"""What every service's server offers besides its own methods: health by four names, reflection, clear errors."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from paceline.errors import ConfigError
from paceline.rpc import RpcServer, open_channel

SERVICE = "paceline.v1.RouterService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest_asyncio.fixture
async def server() -> AsyncIterator[RpcServer]:
    server = RpcServer(SERVICE)
    yield server
    await server.stop(0)


@pytest_asyncio.fixture
async def channel(server: RpcServer) -> AsyncIterator[grpc.aio.Channel]:
    port = await server.start("127.0.0.1", 0)
    async with open_channel(f"127.0.0.1:{port}") as channel:
        yield channel


async def health(channel: grpc.aio.Channel) -> dict[str, int]:
    stub = health_pb2_grpc.HealthStub(channel)
    names = ("", SERVICE, "readiness", "liveness")
    return {name: (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status for name in names}


async def test_a_server_is_alive_at_once_and_ready_when_it_says_so(
    server: RpcServer, channel: grpc.aio.Channel
) -> None:
    ready_names = ("", SERVICE, "readiness")
    assert await health(channel) == dict.fromkeys(ready_names, NOT_SERVING) | {"liveness": SERVING}
    await server.set_ready(True)
    assert await health(channel) == dict.fromkeys(ready_names, SERVING) | {"liveness": SERVING}
    await server.set_ready(False)
    assert await health(channel) == dict.fromkeys(ready_names, NOT_SERVING) | {"liveness": SERVING}


async def test_reflection_names_the_service_and_health(channel: grpc.aio.Channel) -> None:
    call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    reply = await call.read()
    call.cancel()
    names = {service.name for service in reply.list_services_response.service}
    assert names >= {SERVICE, "grpc.health.v1.Health"}


async def test_a_taken_port_is_one_clear_error(
    server: RpcServer, taken: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=f"--port is {taken}, but nothing can listen on 127.0.0.1:{taken}: Address"):
        await server.start("127.0.0.1", taken)
    assert capfd.readouterr().err == ""


async def test_what_grpc_alone_cannot_listen_on_names_its_flag(server: RpcServer) -> None:
    with pytest.raises(ConfigError, match=r"gRPC cannot listen on 127\.1:0: choose another --port or host"):
        await server.start("127.1", 0)
