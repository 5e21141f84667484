"""A router in this process, and the peers it talks to: real gRPC servers that a test scripts."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc
import pytest
import pytest_asyncio

from paceline.defaults import DEFAULT_MODEL_PATH
from paceline.rpc import open_channel
from paceline.v1 import (
    common_pb2,
    draft_pb2,
    draft_pb2_grpc,
    router_pb2,
    router_pb2_grpc,
    target_pb2,
    target_pb2_grpc,
)
from router.config import RouterConfig
from router.running import RunningRouter, running_router
from router.text.tokenizer import TextTokenizer
from tests.support.waiting import WAIT_S

EOS = 2


async def soon(awaitable: Awaitable[Any]) -> Any:
    """Its result; a test that would hang fails instead."""
    return await asyncio.wait_for(awaitable, WAIT_S)


class Stream:
    """One Serve stream as the target sees it."""

    def __init__(self, target: ScriptedTarget) -> None:
        self.submits: asyncio.Queue[list[target_pb2.Submission]] = asyncio.Queue()  # one entry a message
        self.cancels: asyncio.Queue[int] = asyncio.Queue()
        self.policies: asyncio.Queue[target_pb2.BatchPolicy] = asyncio.Queue()
        self.updates: asyncio.Queue[dict[int, target_pb2.SpeculationDecision]] = asyncio.Queue()
        self.hello = target_pb2.ServeHello()
        self._submissions: deque[target_pb2.Submission] = deque()
        self.out: asyncio.Queue[target_pb2.ServeResponse | None] = asyncio.Queue()
        self.granted = target_pb2.Credits(slots=target.slots, pages=target.pages)

    def send(self, **fields: Any) -> None:
        self.out.put_nowait(target_pb2.ServeResponse(**fields))

    def tokens(self, number: int, offset: int, tokens: Sequence[int], **fields: Any) -> None:
        deltas = target_pb2.TokenDeltas(
            request=[number], offset=[offset], num_tokens=[len(tokens)], tokens=list(tokens)
        )
        self.send(deltas=deltas, **fields)

    def finish(self, number: int, *, reason: int = common_pb2.FINISH_REASON_LENGTH, **fields: Any) -> None:
        self.send(finishes=[target_pb2.Finish(request=number, reason=reason, **fields)])

    def give_back(self, number: int, reason: int) -> None:
        self.send(returns=[target_pb2.Return(request=number, reason=reason)])

    def grant(self, slots: int, pages: int = 100_000) -> None:
        self.send(credits=target_pb2.Credits(slots=slots, pages=pages))

    def load(self, **fields: Any) -> None:
        self.send(load=target_pb2.LoadReport(**fields))

    def end(self) -> None:
        self.out.put_nowait(None)

    async def next_submit(self) -> list[target_pb2.Submission]:
        return await soon(self.submits.get())

    async def next_submission(self) -> target_pb2.Submission:
        """One at a time, however they were grouped."""
        if not self._submissions:
            self._submissions += await self.next_submit()
        return self._submissions.popleft()


class ScriptedTarget(target_pb2_grpc.TargetServiceServicer):
    """Speaks the target's part by a test's word."""

    def __init__(self, *, slots: int = 64, pages: int = 100_000, **info: Any) -> None:
        self.slots = slots
        self.pages = pages
        values: dict[str, Any] = {
            "service": "target",
            "incarnation": 1,
            "model_fingerprint": "m",
            "head_fingerprint": "h",
            "feature_id": "f",
            "vocab_size": 49152,
            "context_length": 8192,
            "page_size": 16,
            "num_pages": 100_000,
            "max_running_requests": 64,
            "eos_token_ids": [EOS],
        }
        self.info = common_pb2.ServiceInfo(**(values | info))
        self.streams: asyncio.Queue[Stream] = asyncio.Queue()
        self.address = ""
        self.port = 0
        self._server: grpc.aio.Server | None = None

    async def Serve(self, requests: Any, context: Any) -> AsyncIterator[target_pb2.ServeResponse]:
        stream = Stream(self)
        first = await anext(aiter(requests))
        stream.hello = first.hello
        reader = asyncio.create_task(self._read(requests, stream))
        try:
            yield target_pb2.ServeResponse(info=self.info, credits=stream.granted)
            self.streams.put_nowait(stream)
            while (message := await stream.out.get()) is not None:
                yield message
        finally:
            reader.cancel()

    async def GetInfo(self, request: Any, context: Any) -> target_pb2.TargetServiceGetInfoResponse:
        return target_pb2.TargetServiceGetInfoResponse(info=self.info)

    async def next_stream(self) -> Stream:
        return await soon(self.streams.get())

    async def start(self, port: int = 0) -> None:
        self._server = grpc.aio.server()
        target_pb2_grpc.add_TargetServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.address = f"127.0.0.1:{self.port}"
        await self._server.start()

    async def die(self) -> None:
        """Ends at once, streams and all."""
        assert self._server is not None
        await self._server.stop(None)

    async def _read(self, requests: Any, stream: Stream) -> None:
        async for message in requests:
            kind = message.WhichOneof("message")
            if kind == "submit":
                stream.submits.put_nowait(list(message.submit.submissions))
            elif kind == "cancel":
                for number in message.cancel.requests:
                    stream.cancels.put_nowait(number)
            elif kind == "batch_policy":
                stream.policies.put_nowait(message.batch_policy)
            elif kind == "update_speculation":
                update = message.update_speculation
                stream.updates.put_nowait(dict(zip(update.requests, update.decisions, strict=True)))


class ScriptedDraft(draft_pb2_grpc.DraftServiceServicer):
    """Speaks the part of a draft that routers see."""

    def __init__(self, *, max_sessions: int = 8, **info: Any) -> None:
        values: dict[str, Any] = {
            "service": "draft",
            "incarnation": 2,
            "head_fingerprint": "h",
            "feature_id": "f",
            "max_running_requests": max_sessions,
        }
        self.info = common_pb2.ServiceInfo(**(values | info))
        self.max_sessions = max_sessions
        self.watched = asyncio.Event()
        self.address = ""
        self.port = 0
        self._loads: asyncio.Queue[draft_pb2.WatchLoadResponse] = asyncio.Queue()
        self._server: grpc.aio.Server | None = None

    def load(self, **fields: Any) -> None:
        message = draft_pb2.WatchLoadResponse(
            max_sessions=self.max_sessions, incarnation=self.info.incarnation, **fields
        )
        self._loads.put_nowait(message)

    async def GetInfo(self, request: Any, context: Any) -> draft_pb2.DraftServiceGetInfoResponse:
        return draft_pb2.DraftServiceGetInfoResponse(info=self.info)

    async def WatchLoad(self, request: Any, context: Any) -> AsyncIterator[draft_pb2.WatchLoadResponse]:
        yield draft_pb2.WatchLoadResponse(max_sessions=self.max_sessions, incarnation=self.info.incarnation)
        self.watched.set()
        while True:
            yield await self._loads.get()

    async def start(self, port: int = 0) -> None:
        self._server = grpc.aio.server()
        draft_pb2_grpc.add_DraftServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.address = f"127.0.0.1:{self.port}"
        await self._server.start()

    async def die(self) -> None:
        assert self._server is not None
        await self._server.stop(None)


class Rig:
    """A router with its peers, and a client's stub."""

    def __init__(self, router: RunningRouter, stub: Any) -> None:
        self.router = router
        self.stub = stub

    @contextlib.asynccontextmanager
    async def slow_client(self) -> AsyncIterator[Rig]:
        """The same router by a connection that takes 64 KB ahead of what its client has read, and no more."""
        options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_535)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.router.port}", options=options) as channel:
            yield Rig(self.router, router_pb2_grpc.RouterServiceStub(channel))

    def generate(self, ids: Sequence[int] = (5, 6, 7), **fields: Any) -> Any:
        """A Generate call of such a request."""
        return self.stub.Generate(self.request(ids, **fields))

    def request(self, ids: Sequence[int] = (5, 6, 7), **fields: Any) -> router_pb2.GenerateRequest:
        """On token ids, or on the text or chat given; sampling fields by their names, others as they are."""
        sampling = common_pb2.SamplingParams(
            **{
                name: fields.pop(name)
                for name in list(fields)
                if name in common_pb2.SamplingParams.DESCRIPTOR.fields_by_name
            }
        )
        source = {} if {"text", "chat"} & fields.keys() else {"token_ids": router_pb2.TokenIds(ids=ids)}
        return router_pb2.GenerateRequest(sampling_params=sampling, **source, **fields)

    async def info(self) -> router_pb2.RouterServiceGetInfoResponse:
        return await soon(self.stub.GetInfo(router_pb2.RouterServiceGetInfoRequest()))

    async def info_when(self, holds: Callable[[Any], bool]) -> router_pb2.RouterServiceGetInfoResponse:
        """The first answer that holds; asked again and again, for a bounded time."""

        async def ask() -> router_pb2.RouterServiceGetInfoResponse:
            while not holds(reply := await self.info()):
                pass
            return reply

        return await soon(ask())


@pytest.fixture(scope="session")
def load_once() -> Callable[[str], TextTokenizer]:
    """TextTokenizer.load, once a folder: it takes a third of a second."""
    return functools.cache(TextTokenizer.load)


@pytest.fixture
def tokenizer(load_once: Callable[[str], TextTokenizer]) -> TextTokenizer:
    return load_once(DEFAULT_MODEL_PATH)


@pytest_asyncio.fixture
async def start_peer() -> AsyncIterator[Callable[[Any], Awaitable[Any]]]:
    """Starts a scripted peer, ends it with the test."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(peer: Any) -> Any:
            await peer.start()
            stack.push_async_callback(peer.die)
            return peer

        yield start


@pytest_asyncio.fixture
async def make_target(start_peer: Callable[[Any], Awaitable[Any]]) -> Callable[..., Awaitable[ScriptedTarget]]:
    async def make(**settings: Any) -> ScriptedTarget:
        return await start_peer(ScriptedTarget(**settings))

    return make


@pytest_asyncio.fixture
async def make_draft(start_peer: Callable[[Any], Awaitable[Any]]) -> Callable[..., Awaitable[ScriptedDraft]]:
    async def make(**settings: Any) -> ScriptedDraft:
        return await start_peer(ScriptedDraft(**settings))

    return make


@pytest_asyncio.fixture
async def make_rig(
    load_once: Callable[[str], TextTokenizer], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[..., Awaitable[Rig]]]:
    """Starts a router for these peers; flags by their field names."""
    monkeypatch.setattr(TextTokenizer, "load", load_once)
    async with contextlib.AsyncExitStack() as stack:

        async def make(targets: Sequence[Any], drafts: Sequence[Any] = (), **flags: Any) -> Rig:
            config = RouterConfig(
                port=0,
                targets=tuple(peer.address for peer in targets),
                drafts=tuple(peer.address for peer in drafts),
                **flags,
            )
            router = await stack.enter_async_context(running_router(config))
            channel = await stack.enter_async_context(open_channel(f"127.0.0.1:{router.port}"))
            return Rig(router, router_pb2_grpc.RouterServiceStub(channel))

        yield make


@pytest_asyncio.fixture
async def skip_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """skip_time(seconds): what was to come in that time is due. To be asked for before ``make_rig``."""
    loop, skipped_s = asyncio.get_running_loop(), 0.0
    time = loop.time

    def skip(seconds: float) -> None:
        nonlocal skipped_s
        skipped_s += seconds

    monkeypatch.setattr(loop, "time", lambda: time() + skipped_s)
    return skip


@pytest.fixture
def collect() -> Callable[[Any], Awaitable[list[router_pb2.GenerateResponse]]]:
    """All messages of a call."""

    async def read(call: Any) -> list[router_pb2.GenerateResponse]:
        async def drain() -> list[router_pb2.GenerateResponse]:
            messages = []
            while (message := await call.read()) is not grpc.aio.EOF:
                messages.append(message)
            return messages

        return await soon(drain())

    return read


@pytest.fixture
def failure() -> Callable[[Any], Awaitable[tuple[grpc.StatusCode, str]]]:
    """Status and message of a call that fails."""

    async def read(call: Any) -> tuple[grpc.StatusCode, str]:
        async def drain() -> None:
            while await call.read() is not grpc.aio.EOF:
                pass

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await soon(drain())
        return caught.value.code(), caught.value.details() or ""

    return read
