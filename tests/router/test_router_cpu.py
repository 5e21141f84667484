"""What a router costs: CPU time of its process a client message, beside a server that only streams."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from paceline.v1 import common_pb2, router_pb2, router_pb2_grpc, target_pb2

NUM_REQUESTS = 64
NUM_TURNS, NUM_STEPS = 8, 25  # the servers take turns, of so many steps each
REQUEST = router_pb2.GenerateRequest(
    token_ids=router_pb2.TokenIds(ids=[5, 6, 7]), sampling_params=common_pb2.SamplingParams(max_tokens=8000)
)


@pytest.mark.slow
async def test_a_client_message_costs_little_more_than_what_grpc_takes_of_it(make_target) -> None:
    """One message a client and step, in lockstep, so that nothing merges.

    The servers take turns: absolute times double where the machine is shared.
    """
    async with (
        bare_server() as bare,
        router(await make_target(), tokens_a_step=1) as one,
        router(await make_target(), tokens_a_step=3) as three,
    ):
        servers = (bare, one, three)
        for server in servers:
            await server.run()
            server.spent_s = 0.0
        for _ in range(NUM_TURNS):
            for server in servers:
                await server.run()
    bare_us, one_us, three_us = (1e6 * server.spent_s / (NUM_TURNS * NUM_STEPS * NUM_REQUESTS) for server in servers)
    print(f"\n{bare_us:.1f} us a message of a bare server, {one_us:.1f} of a router, {three_us:.1f} with 3 tokens each")
    assert max(one_us, three_us) < 1.8 * bare_us


@dataclass(slots=True)
class Server:
    """A program whose clients each get a message a step."""

    process: psutil.Process
    calls: list[Any]
    step: Callable[[int], Awaitable[None]]
    num_steps: int = 0
    spent_s: float = 0.0  # CPU time of the process in all turns

    async def run(self) -> None:
        """A turn."""
        before_s = cpu_s(self.process)
        for _ in range(NUM_STEPS):
            await self.step(self.num_steps)
            self.num_steps += 1
            for message in await asyncio.gather(*(call.read() for call in self.calls)):
                assert message.token_ids
        self.spent_s += cpu_s(self.process) - before_s


@contextlib.asynccontextmanager
async def bare_server() -> AsyncIterator[Server]:
    async with program(str(Path(__file__).parent / "bare_server.py")) as (stub, process):
        calls = [stub.Generate(REQUEST) for _ in range(NUM_REQUESTS)]
        ask = router_pb2.RouterServiceGetInfoRequest()
        while (await stub.GetInfo(ask)).queued_requests < NUM_REQUESTS:
            pass

        async def step(index: int) -> None:
            await stub.GetInfo(ask)

        yield Server(process, calls, step)


@contextlib.asynccontextmanager
async def router(target: Any, *, tokens_a_step: int) -> AsyncIterator[Server]:
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

        yield Server(process, calls, step)


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
