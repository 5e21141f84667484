"""mTLS of the shared server and channels: who is let in, what a misfit is told, and rotation without a restart."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline.errors import ConfigError
from paceline.rpc import RpcServer, open_blocking_channel, open_channel
from paceline.tls import TlsFiles, TlsIdentity
from paceline.tls_fault import tls_fault
from tests.support.certificates import Authority
from tests.support.waiting import WAIT_S

SERVICE = "paceline.v1.RouterService"
ALIVE = health_pb2.HealthCheckRequest(service="liveness")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@contextlib.asynccontextmanager
async def serving(files: TlsFiles) -> AsyncIterator[int]:
    server = RpcServer(SERVICE, tls=TlsIdentity(files))
    port = await server.start("127.0.0.1", 0)
    try:
        yield port
    finally:
        await server.stop(0)


async def check(port: int, tls: TlsIdentity | None) -> int:
    async with open_channel(f"127.0.0.1:{port}", tls) as channel:
        return (await health_pb2_grpc.HealthStub(channel).Check(ALIVE, timeout=WAIT_S)).status


async def fault(port: int, tls: TlsIdentity | None) -> str:
    """What a caller whose check fails is told."""
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await check(port, tls)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        return await asyncio.to_thread(tls_fault, f"127.0.0.1:{port}", tls, caught.value.details() or "")


async def test_peers_of_one_authority_talk(authority: Authority) -> None:
    async with serving(authority.issue("server")) as port:
        assert await check(port, TlsIdentity(authority.issue("client"))) == health_pb2.HealthCheckResponse.SERVING


async def test_a_blocking_channel_speaks_tls_too(authority: Authority) -> None:
    client = TlsIdentity(authority.issue("client"))

    def ask(port: int) -> int:
        with open_blocking_channel(f"127.0.0.1:{port}", client) as channel:
            return health_pb2_grpc.HealthStub(channel).Check(ALIVE, timeout=WAIT_S).status

    async with serving(authority.issue("server")) as port:
        assert await asyncio.to_thread(ask, port) == health_pb2.HealthCheckResponse.SERVING


async def test_each_misfit_is_told_what_is_wrong(authority: Authority, tmp_path: Path) -> None:
    ours = authority.issue("client")
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other", "stranger")
    async with serving(authority.issue("server")) as port:
        assert "it speaks TLS: give --tls-ca" in await fault(port, None)
        assert "nobody in without a certificate" in await fault(port, TlsIdentity(TlsFiles("", "", ours.ca)))
        assert "unable to get local issuer" in await fault(port, TlsIdentity(dataclasses.replace(ours, ca=other.ca)))
        stranger = dataclasses.replace(other.issue("stranger"), ca=ours.ca)
        assert f"it refuses our certificate {stranger.cert}" in await fault(port, TlsIdentity(stranger))
    async with serving(authority.issue("server", hosts=("target.example",))) as port:
        assert "not valid for '127.0.0.1'" in await fault(port, TlsIdentity(ours))
        assert await check(port, TlsIdentity(dataclasses.replace(ours, peer_name="target.example")))
    plain = RpcServer(SERVICE)
    port = await plain.start("127.0.0.1", 0)
    assert "it speaks no TLS" in await fault(port, TlsIdentity(ours))
    await plain.stop(0)


async def test_a_server_may_let_clients_in_that_have_no_certificate(authority: Authority) -> None:
    async with serving(dataclasses.replace(authority.issue("server"), verify_clients=False)) as port:
        assert await check(port, TlsIdentity(TlsFiles("", "", authority.ca)))


async def test_new_certificates_are_used_by_the_next_handshake_and_running_calls_go_on(
    authority: Authority, tmp_path: Path
) -> None:
    server_files, client_files = authority.issue("server"), authority.issue("client")
    client = TlsIdentity(client_files)
    async with serving(server_files) as port, open_channel(f"127.0.0.1:{port}", client) as old:
        watch = health_pb2_grpc.HealthStub(old).Watch(ALIVE)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        (tmp_path / "next").mkdir()
        renewed = Authority(tmp_path / "next")  # another authority: the old certificates are of no use any more
        for files, name in ((server_files, "server"), (client_files, "client")):
            _replace(files, renewed.issue(name))
        assert await check(port, client)
        stub = health_pb2_grpc.HealthStub(old)
        assert (await stub.Check(ALIVE, timeout=WAIT_S)).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()


async def test_rotation_under_load_fails_no_call(authority: Authority) -> None:
    server_files, client_files = authority.issue("server"), authority.issue("client")
    client = TlsIdentity(client_files)
    used = set()
    async with serving(server_files) as port:

        async def calls() -> None:
            for _ in range(25):
                await check(port, client)  # a connection, and so a handshake, for each
                used.add(client.current().cert)
                if len(used) < 8:
                    authority.issue("server")
                    authority.issue("client")

        await asyncio.gather(*(calls() for _ in range(4)))
    assert len(used) == 8


def test_a_half_written_set_is_not_used_and_logged_once(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    files = authority.issue("server")
    identity = TlsIdentity(files)
    good = identity.current()
    Path(files.key).write_text("half a ke")
    with caplog.at_level(logging.WARNING):
        assert [identity.current() for _ in range(3)] == [good] * 3
    (record,) = caplog.records
    assert "are no pair in PEM form" in record.getMessage() and "the old ones stay" in record.getMessage()
    authority.issue("server")
    assert identity.current() != good


def test_unusable_files_are_refused_at_the_start(authority: Authority, tmp_path: Path) -> None:
    files = authority.issue("server")
    cases = {
        "no-such.pem cannot be read: No such file": dataclasses.replace(files, ca=str(tmp_path / "no-such.pem")),
        "are no pair in PEM form: KEY_VALUES_MISMATCH": dataclasses.replace(files, key=authority.issue("other").key),
        "certificate has expired; renew it": authority.issue("old", days=-1),
        "holds no certificates in PEM form": dataclasses.replace(files, ca=files.key),
    }
    for message, wrong in cases.items():
        with pytest.raises(ConfigError, match=message):
            TlsIdentity(wrong)
    with pytest.raises(ConfigError, match="--tls-cert and --tls-key come together"):
        TlsFiles(files.cert, "", files.ca)
    with pytest.raises(ConfigError, match="--tls-ca is unset"):
        TlsFiles(files.cert, files.key, "")


async def test_health_has_a_plaintext_port_of_its_own(authority: Authority) -> None:
    server = RpcServer(SERVICE, tls=TlsIdentity(authority.issue("server")), health_port=(free := _free_port()))
    await server.start("127.0.0.1", 0)
    await server.set_ready(True)
    async with open_channel(f"127.0.0.1:{free}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", SERVICE, "readiness", "liveness"):
            reply = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=WAIT_S)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
    await server.stop(0)


async def test_a_taken_health_port_names_its_flag(taken: int) -> None:
    server = RpcServer(SERVICE, health_port=taken)
    with pytest.raises(ConfigError, match=f"--health-port is {taken}, but nothing can listen on 127.0.0.1:{taken}"):
        await server.start("127.0.0.1", 0)


def _replace(files: TlsFiles, source: TlsFiles) -> None:
    for old, new in zip(files.paths, source.paths, strict=True):
        shutil.copy(new, old)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_socket_in_the_file_system_has_no_tls_to_find_fault_with() -> None:
    assert tls_fault("unix:/nowhere.sock", None, "Socket closed") == ""


def test_an_address_that_nothing_answers_at_is_not_looked_into() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        details = f"last error: UNKNOWN: ipv4:127.0.0.1:{port}: tcp handshaker shutdown"
        assert tls_fault(f"127.0.0.1:{port}", None, details) == ""
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
