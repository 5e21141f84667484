"""A draft ends without cutting a round short: draining, an engine that fails, and the process itself."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from draft_service.events import Opening, RoundMessage
from draft_service.replies import SessionCode
from paceline.config import to_argv
from paceline.errors import ConfigError, UnavailableError
from paceline.rpc import open_channel
from paceline.types import SamplingParams
from paceline.v1 import draft_pb2, draft_pb2_grpc
from tests.support.draft_peer import Running
from tests.support.tiny_draft import TinyDraft, random_prompt
from tests.support.waiting import WAIT_S

Serve = Callable[..., AbstractAsyncContextManager[Running]]
ROOT = Path(__file__).resolve().parents[2]


async def readiness(channel: grpc.aio.Channel) -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    return (await stub.Check(health_pb2.HealthCheckRequest(service="readiness"))).status


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the service logs of its drain."""
    lines = [record.getMessage() for record in caplog.records if record.name == "draft_service.service"]
    return [line for line in lines if "drain" in line]


async def test_a_draining_draft_serves_its_sessions_and_opens_none(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    prompt = random_prompt(12)
    async with serve(drain_timeout_s=WAIT_S) as running:
        target = await running.connect()
        await target.send(open=[(1, 64)])
        await target.ask(1, 1, prompt[:8])
        assert await readiness(running.channel) == health_pb2.HealthCheckResponse.SERVING
        drain = asyncio.create_task(running.service.drain())
        watch = running.stub.WatchLoad(draft_pb2.WatchLoadRequest(min_interval_ms=10))
        while not (await watch.read()).draining:
            pass
        assert await readiness(running.channel) == health_pb2.HealthCheckResponse.NOT_SERVING
        await target.send(open=[(2, 64)])
        assert (await target.status(2)).code == SessionCode.DRAINING
        await target.ask(1, 2, prompt, base_len=8)
        assert not drain.done()
        await target.send(release=[1])
        await asyncio.wait_for(drain, WAIT_S)
        watch.cancel()
    assert told(caplog) == [f"draining 1 sessions for up to {WAIT_S:g} s", "drained"]


async def test_a_drain_gives_up_on_sessions_at_its_timeout(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serve(drain_timeout_s=0.05) as running:
        target = await running.connect()
        await target.send(open=[(1, 64)])
        await target.status(1)
        await asyncio.wait_for(running.service.drain(), WAIT_S)
    assert told(caplog) == ["draining 1 sessions for up to 0.05 s", "drain: 1 sessions were still open"]


async def test_open_streams_end_well_when_the_draft_closes(serve: Serve) -> None:
    async with serve() as running:
        target = await running.connect()
        await running.service.close()
        assert await asyncio.wait_for(target.call.read(), WAIT_S) is grpc.aio.EOF
        assert await target.call.code() is grpc.StatusCode.OK


async def test_a_lost_engine_thread_ends_every_stream_and_the_service(serve: Serve) -> None:
    async with serve() as running:
        target = await running.connect()
        unsound = Opening(session=1, max_len=-1000, sampling=SamplingParams())  # what the edge never lets through
        message = RoundMessage(1, 7, (unsound, None), None, (), 0.0)  # type: ignore[arg-type]
        running.service._loop.post(message)
        with pytest.raises(UnavailableError, match="engine thread"):
            await asyncio.wait_for(running.service.failed, WAIT_S)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(target.call.read(), WAIT_S)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_the_process_says_when_it_is_ready_and_drains_on_sigterm(tiny: TinyDraft) -> None:
    argv = to_argv(tiny.config())
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "draft_service", *argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = (await asyncio.wait_for(process.stdout.readline(), WAIT_S)).decode().split()
        assert line[:1] == ["ready"], await process.stderr.read()
        async with open_channel(line[1]) as channel:
            info = await draft_pb2_grpc.DraftServiceStub(channel).GetInfo(draft_pb2.DraftServiceGetInfoRequest())
            assert info.info.service == "draft"
        process.send_signal(signal.SIGTERM)
        status = await asyncio.wait_for(process.wait(), WAIT_S)
    finally:
        if process.returncode is None:
            process.kill()
    log = (await process.stderr.read()).decode()
    assert status == 0, log
    assert "Traceback" not in log
    assert await process.stdout.read() == b""


def test_a_missing_head_ends_the_process_with_a_message(tiny: TinyDraft) -> None:
    argv = to_argv(tiny.config(speculative_draft_model_path="/nowhere"))
    done = subprocess.run(
        [sys.executable, "-m", "draft_service", *argv],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1].startswith("draft_service: ")
    assert "/nowhere" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"page_size": 0}, "--page-size is 0"),
        ({"port": 70000}, "--port is 70000"),
        ({"mem_fraction_static": 1.5}, "--mem-fraction-static is 1.5"),
        ({"max_round_rows": 8, "max_bulk_rows": 9}, "--max-round-rows is 8"),
        ({"max_total_tokens": 1}, "--max-total-tokens is 1"),
    ],
)
def test_a_flag_out_of_its_range_is_refused_by_name(tiny: TinyDraft, flags: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        tiny.config(**flags)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"max_total_tokens": 40}, "10 KV pages"),
        ({"max_total_tokens": 10**12}, "--max-total-tokens 1000000000000 takes"),
        ({"context_length": 1000}, "--context-length is 1000"),
        ({"device": "abacus"}, "--device abacus"),
        ({"device": "cuda", "kernel_backend": "cpu"}, "--device is cuda, but"),
    ],
)
async def test_settings_that_fit_no_machine_or_model_are_refused(
    serve: Serve, flags: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        async with serve(**flags):
            pass
