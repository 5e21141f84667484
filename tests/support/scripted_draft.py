"""Drafts at the other end of a target's link: one that says what a test wrote down, and a real service."""

from __future__ import annotations

import asyncio
import contextlib

import grpc
from prometheus_client import CollectorRegistry

from draft_service.config import DraftConfig
from draft_service.service import DraftService, LoadedDraft
from paceline.frames import frame
from paceline.plumbing import Plumbing
from paceline.v1 import common_pb2, draft_pb2, verify_pb2
from target_service.draft_link import DraftLink, LinkIdentity
from target_service.link_home import LinkHome
from target_service.round_lane import RoundLanes
from tests.support.lane_reader import reading
from tests.support.waiting import WAIT_S

IDENTITY = LinkIdentity(incarnation=5, name="test", feature_id="f", head_fingerprint="h", vocab_size=97)
INFO = {"incarnation": 3, "feature_id": "f", "vocab_size": 97}


class ScriptedDraft:
    """Answers the first message of Speculate by its script: bytes to send, as they are."""

    def __init__(self, *answers: bytes, status: grpc.StatusCode | None = None) -> None:
        self.answers = answers
        self.status = status
        self.requests: list[draft_pb2.SpeculateRequest] = []
        self.got = asyncio.Event()
        self.third_request = asyncio.Event()

    async def speculate(self, requests, context):
        first = await anext(aiter(requests))
        self.requests.append(first)
        if len(self.requests) == 3:
            self.third_request.set()
        if self.status is not None:
            await context.abort(self.status, "scripted")
        for answer in self.answers:
            yield answer
        async for message in requests:
            self.requests.append(message)
            self.got.set()

    async def sync(self, requests, context):
        async for _ in requests:
            pass
        return
        yield b""


class ScriptedLane:
    """Where a scripted draft's lanes lead: sends its frames, as they are, to each connection that shows the token."""

    TOKEN = bytes(range(32))

    def __init__(self, *answers: bytes, mute: bool = False, ends: bool = False) -> None:
        """mute: never says that it took the token. ends: closes when it has sent all."""
        self.answers = answers
        self.mute = mute
        self.ends = ends
        self.num_connections = 0
        self.requests: asyncio.Queue[draft_pb2.SpeculateRequest] = asyncio.Queue()
        self.port = 0

    @contextlib.asynccontextmanager
    async def open(self):
        """The offer."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield draft_pb2.RoundLane(port=self.port, token=self.TOKEN)
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionResetError):
            assert await _payload(reader) == self.TOKEN
            if not self.mute:
                writer.write(frame(b""))
                writer.write(b"".join(self.answers))
            while not self.ends:
                self.requests.put_nowait(draft_pb2.SpeculateRequest.FromString(await _payload(reader)))
        writer.close()


async def _payload(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


def info(lane: draft_pb2.RoundLane | None = None, **changes: object) -> bytes:
    info = common_pb2.ServiceInfo(**{**INFO, **changes})
    return draft_pb2.SpeculateResponse(info=info, lane=lane).SerializeToString()


@contextlib.asynccontextmanager
async def scripted(draft: ScriptedDraft, port: int = 0):
    server = grpc.aio.server()
    handlers = {
        "Speculate": grpc.stream_stream_rpc_method_handler(
            draft.speculate, request_deserializer=draft_pb2.SpeculateRequest.FromString
        ),
        "Sync": grpc.stream_stream_rpc_method_handler(draft.sync),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("paceline.v1.DraftService", handlers),))
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@contextlib.asynccontextmanager
async def linked(address: str, lanes: RoundLanes | None = None):
    """A link, what awaits its next event, and through ``lanes`` what an engine sends by."""
    events: asyncio.Queue = asyncio.Queue()
    loop = asyncio.get_running_loop()
    with reading() as mailbox:
        lanes = lanes or RoundLanes(mailbox.watch)
        home = LinkHome(lambda event: loop.call_soon_threadsafe(events.put_nowait, event), Plumbing(), lanes)
        link = DraftLink(address, IDENTITY, home)
        try:
            yield link, lambda: asyncio.wait_for(events.get(), WAIT_S)
        finally:
            await link.close()


def verify(**changes: object) -> bytes:
    fields = {
        "incarnation": 3,
        "session": [1],
        "round": [1],
        "base_committed_len": [4],
        "num_tokens_per_req": [2],
        "draft_token": [5, 6],
        "parents": [-1, 0],
    }
    message = verify_pb2.VerifyInput(**{**fields, **changes})
    return draft_pb2.SpeculateResponse(verify=message).SerializeToString()


def status(**changes: object) -> bytes:
    fields = {"session": [1], "code": [1], "committed_len": [4], "round": [1]}
    return draft_pb2.SpeculateResponse(status=draft_pb2.SessionStatus(**{**fields, **changes})).SerializeToString()


@contextlib.asynccontextmanager
async def real_draft(tiny_target, port: int = 0, **changes: object):
    config = DraftConfig(
        port=port,
        model_path=str(tiny_target.model_path),
        speculative_draft_model_path=str(tiny_target.head_path),
        dtype="float32",
        page_size=4,
        max_running_requests=8,
        max_total_tokens=4096,
        **changes,
    )
    draft = LoadedDraft.load(config)
    service = DraftService(draft, registry=CollectorRegistry())
    bound = await service.start()
    try:
        yield f"127.0.0.1:{bound}", draft
    finally:
        await service.close()
