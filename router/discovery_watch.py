"""Looks at a router's sources again and again, and tells which peers there are."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeAlias

from paceline.errors import InvalidInputError, PacelineError, UnavailableError
from router.discovery import DnsName, FixedAddress, Source, parse_list

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]

_LOOK_TIMEOUT_S = 5.0
# The name exists without addresses, or does not exist: a headless Service that has no ready pod answers either.
_NOBODY = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}
_log = logging.getLogger(__name__)


async def resolve(host: str, port: int) -> Sequence[str]:
    """host's addresses by the system's resolver, each with the port; none where the name has none.

    Raises UnavailableError where the resolver gives no answer.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in _NOBODY:
            return ()
        raise UnavailableError(f"the resolver gives no answer: {error.strerror}") from error
    return tuple(dict.fromkeys(_show(family, address[0], port) for family, _, _, _, address in found))


class PeerWatch:
    """The peers that a flag's sources name now. A source that cannot be looked up keeps what it said last."""

    def __init__(self, sources: Sequence[Source], *, interval_s: float, resolve: Resolve = resolve) -> None:
        """interval_s: between looks at names and files."""
        self._sources = sources
        self._interval_s = interval_s
        self._resolve = resolve
        self._last: dict[Source, tuple[str, ...]] = {}
        self._told: dict[Source, str] = {}  # what was logged of each, so that it is logged once

    async def changes(self) -> AsyncIterator[tuple[str, ...]]:
        """All addresses, in the sources' order and each once: at once, then after each change.

        Ends where none of the sources can change.
        """
        yielded = None
        while True:
            await asyncio.gather(*(self._look(source) for source in self._sources))
            addresses = tuple(dict.fromkeys(address for source in self._sources for address in self._last[source]))
            if addresses != yielded:
                yielded = addresses
                yield addresses
            if all(isinstance(source, FixedAddress) for source in self._sources):
                return
            await asyncio.sleep(self._interval_s)

    async def _look(self, source: Source) -> None:
        before = self._last.get(source, ())
        try:
            async with asyncio.timeout(_LOOK_TIMEOUT_S):
                found = tuple(await self._addresses(source))
        except TimeoutError:
            self._tell(source, f"no answer within {_LOOK_TIMEOUT_S:g} s", kept=before)
            found = before
        except PacelineError as error:
            self._tell(source, str(error), kept=before)
            found = before
        else:
            self._tell(source, "" if found else "it names no address; is anything ready behind it?", kept=found)
        self._last[source] = found

    async def _addresses(self, source: Source) -> Sequence[str]:
        if isinstance(source, FixedAddress):
            return (source.address,)
        if isinstance(source, DnsName):
            # Sorted: the order of DNS answers changes from one to the next.
            return sorted(await self._resolve(source.host, source.port))
        try:
            return parse_list(await asyncio.to_thread(source.path.read_text))
        except (OSError, UnicodeDecodeError) as error:
            raise UnavailableError(f"it cannot be read: {error}") from error
        except InvalidInputError as error:
            raise InvalidInputError(f"{error}; the file counts as a whole or not at all") from error

    def _tell(self, source: Source, message: str, *, kept: Sequence[str]) -> None:
        if message and message != self._told.get(source):
            _log.warning("%s: %s (known: %s)", source, message, ", ".join(kept) or "none")
        self._told[source] = message


def _show(family: int, host: str | int, port: int) -> str:
    return f"[{host}]:{port}" if family == socket.AF_INET6 else f"{host}:{port}"
