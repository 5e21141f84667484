"""A target's end of a draft's streams, and a draft service in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc
import numpy as np
import torch
from prometheus_client import CollectorRegistry

from draft_service.service import DraftService, LoadedDraft
from engine.wire import to_raw
from paceline.codec import encode_sampling_params
from paceline.frames import frame
from paceline.round_codec import decode_verify, encode_extend, encode_tensor
from paceline.rounds import ExtendColumns
from paceline.tree import DraftTree
from paceline.types import SamplingParams, TreeShape
from paceline.v1 import draft_pb2, draft_pb2_grpc
from tests.support.tiny_draft import TREE, Prompt
from tests.support.waiting import WAIT_S


@dataclass(frozen=True, slots=True)
class Part:
    """One session's part of an ExtendInput."""

    session: int
    round: int
    base_len: int
    rows: Prompt
    shape: TreeShape | None = TREE


@dataclass(frozen=True, slots=True)
class Proposal:
    """A tree as it came over the wire."""

    session: int
    round: int
    base_len: int
    tree: DraftTree


@dataclass(frozen=True, slots=True)
class Status:
    session: int
    code: int
    committed_len: int
    round: int


class LaneCall:
    """A target's end of a lane, used as a Speculate call is."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    @classmethod
    async def knock(cls, port: int, token: bytes) -> LaneCall:
        """Shows the token."""
        call = cls(*await asyncio.open_connection("127.0.0.1", port))
        call.writer.write(frame(token))
        return call

    async def write(self, request: draft_pb2.SpeculateRequest) -> None:
        self.writer.write(frame(request.SerializeToString()))
        await self.writer.drain()

    async def read(self) -> draft_pb2.SpeculateResponse | object:
        payload = await self.frame()
        return grpc.aio.EOF if payload is None else draft_pb2.SpeculateResponse.FromString(payload)

    async def frame(self) -> bytes | None:
        """None: the draft has closed the lane."""
        try:
            size = int.from_bytes(await asyncio.wait_for(self._reader.readexactly(4), WAIT_S), "big")
            return await asyncio.wait_for(self._reader.readexactly(size), WAIT_S)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return None


@dataclass(slots=True)
class Target:
    """A target's end of one Speculate stream, or of the lane beside it."""

    stub: draft_pb2_grpc.DraftServiceStub
    incarnation: int
    call: grpc.aio.StreamStreamCall | LaneCall
    info: draft_pb2.SpeculateResponse | None = None
    statuses: list[Status] = field(default_factory=list)
    proposals: list[Proposal] = field(default_factory=list)

    async def send(
        self,
        *,
        open: Sequence[tuple[int, int]] = (),
        parts: Sequence[Part] = (),
        release: Sequence[int] = (),
        sampling: SamplingParams | None = None,
    ) -> None:
        """One message. open: (session, max_len)."""
        params = encode_sampling_params(sampling or SamplingParams())
        request = draft_pb2.SpeculateRequest(
            open=[draft_pb2.OpenSession(session=s, max_len=n, sampling_params=params) for s, n in open],
            release=release,
        )
        if parts:
            request.extend.CopyFrom(encode_extend(columns(parts), self.incarnation))
        await self.call.write(request)

    async def read(self) -> draft_pb2.SpeculateResponse:
        """The next message; also sorted into ``statuses`` and ``proposals``."""
        response = await asyncio.wait_for(self.call.read(), WAIT_S)
        assert isinstance(response, draft_pb2.SpeculateResponse), "the stream ended"
        status = response.status
        rows = zip(status.session, status.code, status.committed_len, status.round, strict=True)
        self.statuses += [Status(*row) for row in rows]
        verify = decode_verify(response.verify)
        bases = zip(verify.session, verify.round, verify.base_committed_len, verify.trees(), strict=True)
        self.proposals += [Proposal(int(s), int(r), int(b), tree) for s, r, b, tree in bases]
        return response

    async def status(self, session: int, round_: int = 0) -> Status:
        """Waits for the session's answer to that round; 0: to its open."""
        while True:
            for status in self.statuses:
                if (status.session, status.round) == (session, round_):
                    self.statuses.remove(status)
                    return status
            await self.read()

    async def proposal(self, session: int, round_: int) -> Proposal:
        """Waits for the session's tree of that round."""
        while True:
            for proposal in self.proposals:
                if (proposal.session, proposal.round) == (session, round_):
                    self.proposals.remove(proposal)
                    return proposal
            await self.read()

    async def ask(self, session: int, round_: int, prompt: Prompt, base_len: int = 0) -> DraftTree:
        """Sends the rows from base_len on and waits for the tree."""
        await self.send(parts=[Part(session, round_, base_len, prompt[base_len:])])
        proposal = await self.proposal(session, round_)
        assert proposal.base_len == len(prompt.tokens)
        return proposal.tree

    async def end(self) -> None:
        """Closes the stream and waits until the draft has."""
        await self.call.done_writing()
        while await asyncio.wait_for(self.call.read(), WAIT_S) is not grpc.aio.EOF:
            pass


@dataclass(slots=True)
class Running:
    """A draft service that serves on a free port, with a channel to it."""

    service: DraftService
    draft: LoadedDraft
    registry: CollectorRegistry
    channel: grpc.aio.Channel

    @property
    def stub(self) -> draft_pb2_grpc.DraftServiceStub:
        return draft_pb2_grpc.DraftServiceStub(self.channel)

    def hello(self, incarnation: int) -> draft_pb2.DraftHello:
        info = self.service.info
        return draft_pb2.DraftHello(
            incarnation=incarnation,
            target="test",
            head_fingerprint=info.head_fingerprint,
            feature_id=info.feature_id,
        )

    async def connect(self, incarnation: int = 7) -> Target:
        """A round stream whose hello was answered."""
        call = self.stub.Speculate()
        await call.write(draft_pb2.SpeculateRequest(hello=self.hello(incarnation)))
        target = Target(self.stub, incarnation, call)
        target.info = await target.read()
        return target

    async def connect_lane(self, incarnation: int = 7) -> tuple[Target, Target]:
        """A round stream, and a target that asks by its lane."""
        stream = await self.connect(incarnation)
        assert stream.info is not None
        offer = stream.info.lane
        call = await LaneCall.knock(offer.port, offer.token)
        assert await call.frame() == b""
        return stream, Target(self.stub, incarnation, call, stream.info)

    async def sync(self, incarnation: int = 7) -> grpc.aio.StreamStreamCall:
        call = self.stub.Sync()
        await call.write(draft_pb2.SyncRequest(hello=self.hello(incarnation)))
        return call

    async def free_pages(self, wanted: int) -> None:
        """Waits until that many pages are free."""
        watch = self.stub.WatchLoad(draft_pb2.WatchLoadRequest(min_interval_ms=10))
        async with asyncio.timeout(WAIT_S):
            async for load in watch:
                if load.free_pages == wanted:
                    break
        watch.cancel()


def columns(parts: Sequence[Part]) -> ExtendColumns:
    shapes = [part.shape or TreeShape(1, 1, 2) for part in parts]
    proposes = np.array([part.shape is not None for part in parts])
    return ExtendColumns(
        session=np.array([part.session for part in parts], np.uint64),
        round=np.array([part.round for part in parts], np.int64),
        base_committed_len=np.array([part.base_len for part in parts], np.int64),
        num_tokens=np.array([len(part.rows.tokens) for part in parts], np.int64),
        propose=proposes,
        num_steps=np.array([shape.num_steps for shape in shapes], np.int64) * proposes,
        eagle_topk=np.array([shape.eagle_topk for shape in shapes], np.int64) * proposes,
        num_draft_tokens=np.array([shape.num_draft_tokens for shape in shapes], np.int64) * proposes,
        min_path_permille=np.array([shape.min_path_permille for shape in shapes], np.int64) * proposes,
        verified_id=np.concatenate([part.rows.tokens for part in parts]),
        hidden_states=to_raw(torch.cat([part.rows.features for part in parts])),
    )


def sync_rows(session: int, base_len: int, rows: Prompt) -> draft_pb2.SyncRequest:
    return draft_pb2.SyncRequest(
        session=session,
        base_committed_len=base_len,
        verified_id=rows.tokens.tolist(),
        hidden_states=encode_tensor(to_raw(rows.features)),
    )
