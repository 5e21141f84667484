"""Knocking at the port that a draft offered: whatever the draft's host name stands for."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from paceline.errors import UnavailableError
from paceline.frames import frame
from target_service.draft_codec import LaneOffer
from target_service.round_lane import knock

TOKEN = b"token"


@contextlib.asynccontextmanager
async def draft() -> AsyncIterator[LaneOffer]:
    """The port of a draft that lets in who shows the token."""

    async def let_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readexactly(len(frame(TOKEN))) == frame(TOKEN):
            writer.write(frame(b""))
        writer.close()

    server = await asyncio.start_server(let_in, "127.0.0.1", 0)
    async with server:
        yield LaneOffer(server.sockets[0].getsockname()[1], TOKEN)


def resolve(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Every name stands for these from now on; for none, it is not known."""

    async def getaddrinfo(host: str, port: int, **_: object) -> list[object]:
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (each, port)) for each in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)


async def test_of_a_hosts_addresses_the_first_that_takes_the_connection_is_used(monkeypatch) -> None:
    resolve(monkeypatch, "127.0.0.2", "127.0.0.1", "127.0.0.3")
    async with draft() as offer:
        with contextlib.closing(await knock("drafts:7300", offer)) as sock:
            assert sock.getpeername() == ("127.0.0.1", offer.port)


async def test_where_no_address_takes_it_the_last_refusal_is_told(monkeypatch) -> None:
    resolve(monkeypatch, "127.0.0.2", "127.0.0.3")
    async with draft() as offer:
        with pytest.raises(UnavailableError, match=rf"port {offer.port}: .*[Cc]onnect.*127\.0\.0\.3"):
            await knock("drafts:7300", offer)


async def test_a_host_name_that_is_not_known_is_told(monkeypatch) -> None:
    resolve(monkeypatch)
    with pytest.raises(UnavailableError, match=r"port 1: .*Name or service not known"):
        await knock("drafts:7300", LaneOffer(1, TOKEN))
