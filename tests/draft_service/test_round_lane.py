"""Lanes of a draft: same trees as the stream's, strangers that get nowhere, and one end for both."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import grpc
import pytest
from prometheus_client import CollectorRegistry

from draft_service.replies import SessionCode
from draft_service.service import DraftService, LoadedDraft
from paceline.errors import ConfigError
from paceline.frames import frame
from paceline.plumbing import Plumbing
from paceline.v1 import draft_pb2, draft_pb2_grpc
from tests.support.certificates import Authority
from tests.support.draft_peer import LaneCall, Running, Target
from tests.support.tiny_draft import TinyDraft, assert_same_tree, random_prompt
from tests.support.waiting import WAIT_S

Serve = Callable[..., AbstractAsyncContextManager[Running]]


async def ended(target: Target) -> grpc.StatusCode:
    """Waits for the stream's end."""
    assert isinstance(target.call, grpc.aio.StreamStreamCall)
    return await asyncio.wait_for(target.call.code(), WAIT_S)


def counted(running: Running) -> tuple[float | None, ...]:
    """Answers to opens and to rounds."""
    kinds = ({"kind": kind, "code": "ok"} for kind in ("open", "round"))
    return tuple(running.registry.get_sample_value("paceline_draft_replies_total", labels) for labels in kinds)


async def test_trees_by_lane_are_those_by_stream(serve: Serve) -> None:
    prompts = [random_prompt(length, seed=length) for length in (4, 11, 30)]
    async with serve() as running:
        by_stream = await running.connect(7)
        _, by_lane = await running.connect_lane(8)
        for session, prompt in enumerate(prompts, 1):
            trees = []
            for target in (by_stream, by_lane):
                await target.send(open=[(session, 64)])
                assert (await target.status(session)).code == SessionCode.OK
                trees.append(await target.ask(session, 1, prompt))
            assert_same_tree(*trees)
        async with asyncio.timeout(WAIT_S):
            while counted(running) != (6, 6):  # noqa: ASYNC110 - counted after all else
                await asyncio.sleep(0.005)


async def test_the_streams_end_frees_sessions_and_closes_the_lane(serve: Serve) -> None:
    async with serve() as running:
        start = running.service.info.num_pages
        stream, by_lane = await running.connect_lane()
        await by_lane.send(open=[(1, 60)])
        await by_lane.status(1)
        stream.call.cancel()
        assert await by_lane.call.read() is grpc.aio.EOF
        await running.free_pages(start)


async def test_the_lanes_end_ends_the_stream_and_frees_sessions(serve: Serve) -> None:
    async with serve() as running:
        start = running.service.info.num_pages
        stream, by_lane = await running.connect_lane()
        await by_lane.send(open=[(1, 60)])
        await by_lane.status(1)
        by_lane.call.writer.close()
        assert await ended(stream) is grpc.StatusCode.OK
        await running.free_pages(start)


async def test_a_target_that_gives_up_an_unused_lane_stays_with_its_stream(serve: Serve) -> None:
    async with serve() as running:
        stream, by_lane = await running.connect_lane()
        by_lane.call.writer.close()
        await by_lane.call.writer.wait_closed()
        await stream.send(open=[(1, 60)])
        assert (await stream.status(1)).code == SessionCode.OK


@pytest.mark.parametrize(
    "garbage",
    [
        frame(b"\xff\xff\xff random"),
        frame(draft_pb2.SpeculateRequest(hello=draft_pb2.DraftHello(incarnation=7)).SerializeToString()),
        b"\xff\xff\xff\xff",
    ],
    ids=["bytes", "hello", "size"],
)
async def test_garbage_on_a_lane_ends_its_stream_and_no_other(serve: Serve, garbage: bytes) -> None:
    async with serve() as running:
        stream, by_lane = await running.connect_lane(7)
        _, other = await running.connect_lane(8)
        by_lane.call.writer.write(garbage)
        assert await ended(stream) is grpc.StatusCode.INVALID_ARGUMENT
        assert await by_lane.call.read() is grpc.aio.EOF
        await other.send(open=[(1, 60)])
        assert (await other.status(1)).code == SessionCode.OK


async def test_a_connection_without_a_good_token_is_closed_and_harms_nobody(serve: Serve) -> None:
    async with serve() as running:
        stream, by_lane = await running.connect_lane()
        assert stream.info is not None
        port, used = stream.info.lane.port, stream.info.lane.token
        gone = await running.connect(9)
        assert gone.info is not None
        await gone.end()
        for token in (bytes(32), used, gone.info.lane.token, b"", bytes(33), bytes(1 << 20)):
            assert await (await LaneCall.knock(port, token)).frame() is None
        await by_lane.send(open=[(1, 60)])
        assert (await by_lane.status(1)).code == SessionCode.OK


async def test_silent_strangers_are_closed_in_time_and_bounded(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draft_service.lane_door.MAX_STRANGERS", 4)
    async with serve() as running:
        first = await running.connect(7)
        assert first.info is not None
        port = first.info.lane.port
        strangers = [LaneCall(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(6)]
        assert [await stranger.frame() for stranger in strangers[:2]] == [None, None], "the oldest made room"
        _, by_lane = await running.connect_lane(8)
        await by_lane.send(open=[(1, 60)])
        assert (await by_lane.status(1)).code == SessionCode.OK
        monkeypatch.setattr("draft_service.lane_door.STRANGER_TIMEOUT_S", 0.05)
        assert await LaneCall(*await asyncio.open_connection("127.0.0.1", port)).frame() is None


async def test_a_service_with_tls_or_with_lanes_off_offers_none(serve: Serve, tiny: TinyDraft, tmp_path: Path) -> None:
    async with serve(disable_round_lane=True) as running:
        target = await running.connect()
        assert target.info is not None
        assert not target.info.HasField("lane")
    files = Authority(tmp_path).issue("fleet")
    draft = LoadedDraft.load(tiny.config(tls_cert=files.cert, tls_key=files.key, tls_ca=files.ca))
    secured = Plumbing(draft.config)
    service = DraftService(draft, registry=CollectorRegistry(), plumbing=secured)
    port = await service.start()
    async with secured.open_channel(f"localhost:{port}") as channel:
        call = draft_pb2_grpc.DraftServiceStub(channel).Speculate()
        hello = draft_pb2.DraftHello(incarnation=1, feature_id=service.info.feature_id)
        await call.write(draft_pb2.SpeculateRequest(hello=hello))
        first = await asyncio.wait_for(call.read(), WAIT_S)
        assert first.info.incarnation
        assert not first.HasField("lane")
    await service.close()


async def test_a_round_port_that_is_taken_is_refused_by_its_flag(serve: Serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="--round-port"):
        async with serve(round_port=taken.getsockname()[1]):
            pass
