"""A router's end of a target's Serve stream, and a target service in this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import grpc
from prometheus_client import CollectorRegistry

from paceline.codec import encode_decision
from paceline.rpc import open_channel
from paceline.types import SpeculationDecision
from paceline.v1 import common_pb2, target_pb2, target_pb2_grpc
from target_service.config import TargetConfig
from target_service.service import LoadedTarget, TargetService
from tests.support.waiting import WAIT_S


@dataclass(slots=True)
class Got:
    """What came for one request."""

    tokens: list[int] = field(default_factory=list)
    finish: target_pb2.Finish | None = None
    returned: target_pb2.Return | None = None

    @property
    def is_over(self) -> bool:
        return self.finish is not None or self.returned is not None


class RouterPeer:
    """One Serve stream, read by hand."""

    def __init__(self, call: grpc.aio.StreamStreamCall) -> None:
        self.call = call
        self.got: dict[int, Got] = {}
        self.info: common_pb2.ServiceInfo | None = None
        self.credits: target_pb2.Credits | None = None
        self.load: target_pb2.LoadReport | None = None
        self.num_messages = 0

    async def send(self, **message: object) -> None:
        await self.call.write(target_pb2.ServeRequest(**message))

    async def submit(self, *submissions: target_pb2.Submission) -> None:
        for submission in submissions:
            self.got[submission.request] = Got()
        await self.send(submit=target_pb2.Submit(submissions=submissions))

    async def read(self) -> target_pb2.ServeResponse:
        response = await asyncio.wait_for(self.call.read(), WAIT_S)
        assert isinstance(response, target_pb2.ServeResponse), "the stream ended"
        self.num_messages += 1
        if response.HasField("info"):
            self.info = response.info
        if response.HasField("credits"):
            self.credits = response.credits
        if response.HasField("load"):
            self.load = response.load
        deltas, stop = response.deltas, 0
        for number, offset, count in zip(deltas.request, deltas.offset, deltas.num_tokens, strict=True):
            start, stop = stop, stop + count
            assert offset == len(self.got[number].tokens), "a delta does not join up"
            self.got[number].tokens += deltas.tokens[start:stop]
        for finish in response.finishes:
            assert not self.got[finish.request].is_over
            self.got[finish.request].finish = finish
        for returned in response.returns:
            assert not self.got[returned.request].is_over
            self.got[returned.request].returned = returned
        return response

    async def finish(self, *numbers: int) -> list[Got]:
        """Reads until these requests are over."""
        while not all(self.got[number].is_over for number in numbers):
            await self.read()
        return [self.got[number] for number in numbers]

    async def linked(self, decision: SpeculationDecision) -> None:
        """Has request 0 name the decision's draft, and waits until the target is linked with it."""
        await self.submit(submission(0, [5], decision=decision, max_tokens=1))
        await self.finish(0)
        while not any(link.draft == decision.draft and link.connected for link in self.load.drafts):
            await self.read()

    async def status(self) -> grpc.StatusCode:
        """Reads to the stream's end."""
        try:
            while await asyncio.wait_for(self.call.read(), WAIT_S) is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError:
            pass
        return await self.call.code()


@dataclass(slots=True)
class RunningTarget:
    """A target service that serves on a free port, with a channel to it."""

    service: TargetService
    target: LoadedTarget
    channel: grpc.aio.Channel
    registry: CollectorRegistry

    @property
    def stub(self) -> target_pb2_grpc.TargetServiceStub:
        return target_pb2_grpc.TargetServiceStub(self.channel)

    async def connect(self) -> RouterPeer:
        """A stream whose hello was answered with info and credits."""
        peer = RouterPeer(self.stub.Serve())
        await peer.send(hello=target_pb2.ServeHello(router="test", incarnation=1))
        await peer.read()
        return peer

    async def all_free(self) -> None:
        """Waits until every page is free."""
        async with asyncio.timeout(WAIT_S):
            requests = self.target.parts.requests
            while requests.num_free_pages != requests.num_pages:  # noqa: ASYNC110 - the engine thread tells nobody
                await asyncio.sleep(0.005)

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0


@contextlib.asynccontextmanager
async def running_target(config: TargetConfig) -> AsyncIterator[RunningTarget]:
    registry = CollectorRegistry()
    target = LoadedTarget.load(config, init_method="", registry=registry)
    service = TargetService(target)
    port = await service.start()
    try:
        async with open_channel(f"127.0.0.1:{port}") as channel:
            yield RunningTarget(service, target, channel, registry)
    finally:
        await service.close()
    target.parts.requests._allocator.check()


def submission(
    number: int,
    prompt: Sequence[int],
    *,
    decision: SpeculationDecision | None = None,
    emitted: Sequence[int] = (),
    **sampling: object,
) -> target_pb2.Submission:
    """max_tokens is 8 and ignore_eos set unless given."""
    params = {"max_tokens": 8, "seed": 1, "ignore_eos": True, **sampling}
    return target_pb2.Submission(
        request=number,
        request_id=f"request {number}",
        prompt_ids=prompt,
        emitted_ids=emitted,
        sampling_params=common_pb2.SamplingParams(**params),
        decision=encode_decision(decision or SpeculationDecision()),
    )
