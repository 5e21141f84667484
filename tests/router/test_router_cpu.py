"""What a router costs: CPU time of its process a client message, beside a server that only streams."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from paceline.v1 import common_pb2, router_pb2, router_pb2_grpc, target_pb2

NUM_REQUESTS = 64
NUM_STEPS = 200
WARM_UP_STEPS = 20
REQUEST = router_pb2.GenerateRequest(
    token_ids=router_pb2.TokenIds(ids=[5, 6, 7]), sampling_params=common_pb2.SamplingParams(max_tokens=8000)
)


@pytest.mark.slow
async def test_a_client_message_costs_less_than_twice_what_grpc_takes_of_it(make_target) -> None:
    """One message a client and step, in lockstep, so that nothing merges.

    The bare server runs just before: absolute times double where the machine is shared.
    """
    bare_us = await bare_cost()
    for tokens_a_step in (1, 3):
        spent_us = await router_cost(await make_target(), tokens_a_step)
        per_token = f"{spent_us / tokens_a_step:.1f} us a token, {tokens_a_step} a message"
        print(f"\n{spent_us:.1f} us a client message ({per_token}); {bare_us:.1f} us for a bare server")
        assert spent_us < 2 * bare_us


async def bare_cost() -> float:
    async with program(str(Path(__file__).parent / "bare_server.py")) as (stub, process):
        calls = [stub.Generate(REQUEST) for _ in range(NUM_REQUESTS)]
        ask = router_pb2.RouterServiceGetInfoRequest()
        while (await stub.GetInfo(ask)).queued_requests < NUM_REQUESTS:
            pass

        async def step(index: int) -> None:
            await stub.GetInfo(ask)

        return await cost_a_message(process, calls, step)


async def router_cost(target: Any, tokens_a_step: int) -> float:
    flags = ("--port", "0", "--targets", target.address, "--log-level", "warning", "--stream-interval", "1")
    async with program("-m", "router", *flags) as (stub, process):
        stream = await target.next_stream()
        calls = [stub.Generate(REQUEST) for _ in range(NUM_REQUESTS)]
        numbers: list[int] = []
        while len(numbers) < NUM_REQUESTS:
            numbers += [submission.request for submission in await stream.next_submit()]

        async def step(index: int) -> None:
            deltas = target_pb2.TokenDeltas(
                request=numbers,
                offset=[index * tokens_a_step] * NUM_REQUESTS,
                num_tokens=[tokens_a_step] * NUM_REQUESTS,
                tokens=[500 + index] * (NUM_REQUESTS * tokens_a_step),
            )
            stream.send(step=index, deltas=deltas, load=target_pb2.LoadReport(running_requests=NUM_REQUESTS))

        return await cost_a_message(process, calls, step)


async def cost_a_message(process: psutil.Process, calls: list[Any], step: Callable[[int], Awaitable[None]]) -> float:
    """Microseconds of CPU that the process takes for one message to one of the calls."""
    before = 0.0
    for index in range(WARM_UP_STEPS + NUM_STEPS):
        if index == WARM_UP_STEPS:
            before = cpu_s(process)
        await step(index)
        for message in await asyncio.gather(*(call.read() for call in calls)):
            assert message.token_ids
    spent_s = cpu_s(process) - before
    for call in calls:
        call.cancel()
    return 1e6 * spent_s / (NUM_STEPS * len(calls))


@contextlib.asynccontextmanager
async def program(*arguments: str) -> AsyncIterator[tuple[Any, psutil.Process]]:
    """A server's stub and process; ends both."""
    running = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    try:
        assert running.stdout is not None
        address = (await running.stdout.readline()).split()[1].decode()
        async with grpc.aio.insecure_channel(address) as channel:
            yield router_pb2_grpc.RouterServiceStub(channel), psutil.Process(running.pid)
    finally:
        running.terminate()
        await running.wait()


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
