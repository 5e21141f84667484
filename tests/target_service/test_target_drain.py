"""SIGTERM's path: nothing new is taken, what runs may finish, what does not finish goes back."""

import asyncio
import logging

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline.v1 import common_pb2, target_pb2
from tests.support.target_peer import submission
from tests.support.tiny_target import random_prompt
from tests.support.waiting import WAIT_S


async def readiness(target) -> int:
    stub = health_pb2_grpc.HealthStub(target.channel)
    return (await stub.Check(health_pb2.HealthCheckRequest(service="readiness"))).status


def told(caplog) -> list[str]:
    """What the service logs of its drain."""
    return [record.getMessage() for record in caplog.records if record.name == "target_service.service"]


async def test_running_requests_finish_and_new_ones_go_back(serve_target, caplog):
    caplog.set_level(logging.INFO)
    async with serve_target(drain_timeout_s=WAIT_S) as target:
        router = await target.connect()
        assert await readiness(target) == health_pb2.HealthCheckResponse.SERVING
        await router.submit(submission(1, random_prompt(4), max_tokens=150))
        await router.read()
        draining = asyncio.create_task(target.service.drain())
        await asyncio.sleep(0)
        while not router.load.draining:
            await router.read()
        assert await readiness(target) == health_pb2.HealthCheckResponse.NOT_SERVING
        await router.submit(submission(2, random_prompt(4)))
        running, late = await router.finish(1, 2)
        assert len(running.tokens) == 150
        assert late.returned.reason == target_pb2.RETURN_REASON_DRAINING
        await draining
    assert told(caplog) == [f"draining 1 requests for up to {WAIT_S:g} s", "drained"]


async def test_what_does_not_finish_in_time_goes_back_with_its_tokens(serve_target, loop, caplog):
    caplog.set_level(logging.INFO)
    async with serve_target(drain_timeout_s=0.0) as target:
        router = await target.connect()
        prompt = random_prompt(4)
        await router.submit(submission(1, prompt, max_tokens=240))
        while not router.got[1].tokens:
            await router.read()
        await target.service.drain()
        (got,) = await router.finish(1)
        assert got.returned.reason == target_pb2.RETURN_REASON_DRAINING
        assert 0 < len(got.tokens) < 240
        await target.all_free()
    late = "drain: 0 s are over; what still runs goes back to its router"
    assert told(caplog) == ["draining 1 requests for up to 0 s", late, "drained"]
    async with serve_target() as other:
        router = await other.connect()
        await router.submit(submission(1, prompt, max_tokens=240, emitted=got.tokens))
        router.got[1].tokens += got.tokens
        (again,) = await router.finish(1)
        assert again.finish.reason == common_pb2.FINISH_REASON_LENGTH
        assert len(again.tokens) == 240


async def test_an_idle_target_drains_at_once_and_its_streams_end(serve_target):
    async with serve_target() as target:
        router = await target.connect()
        await asyncio.wait_for(target.service.drain(), WAIT_S)
        await target.service.close()
        assert await router.status() is grpc.StatusCode.OK


async def test_an_engine_thread_that_dies_ends_every_stream_as_unavailable(serve_target, monkeypatch):
    async with serve_target() as target:
        router = await target.connect()
        monkeypatch.setattr(target.target.parts.requests, "submit", None)
        await router.send(submit=target_pb2.Submit(submissions=[submission(1, [5])]))
        await asyncio.wait((target.service.failed,), timeout=WAIT_S)
        assert target.service.failed.exception().exit_code != 0
        await target.service.close()
        assert await router.status() is grpc.StatusCode.UNAVAILABLE
