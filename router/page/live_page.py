"""The page's routes: its own files, the router's state, its requests, and the last round of a peer."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from importlib import resources
from typing import Any

from prometheus_client import CollectorRegistry

from paceline import __version__
from paceline.errors import InvalidInputError, PacelineError
from paceline.plumbing import Plumbing
from router.config import RouterConfig
from router.dispatcher import Dispatcher
from router.page.http_server import HttpServer, Reply
from router.page.round_link import last_round
from router.page.round_view import round_document
from router.page.state import fleet_state, session_rows, totals
from router.text.tokenizer import TextTokenizer

_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/tree.js": ("tree.js", "text/javascript; charset=utf-8"),
}
FRESH_S = 0.5  # how long one answer serves all viewers
_MAX_ROWS = 2000


@dataclass(frozen=True, slots=True)
class PageSources:
    """What the page looks at."""

    config: RouterConfig
    dispatcher: Dispatcher
    registry: CollectorRegistry
    plumbing: Plumbing
    tokenizer: TextTokenizer


@asynccontextmanager
async def serving_page(sources: PageSources) -> AsyncIterator[int]:
    """Serves on --page-host and --page-port until left; gives the port, 0 where the page is off. Raises ConfigError."""
    config = sources.config
    if config.page_port is None:
        yield 0
        return
    server = HttpServer(routes(sources))
    port = await server.start(config.page_host, config.page_port)
    try:
        yield port
    finally:
        await server.close()


def routes(sources: PageSources) -> dict[str, Callable[[Mapping[str, str]], Awaitable[Reply]]]:
    """By path."""
    table: dict[str, Callable[[Mapping[str, str]], Awaitable[Reply]]] = {
        path: functools.partial(_file, name, media_type) for path, (name, media_type) in _FILES.items()
    }
    clock = asyncio.get_running_loop().time
    state = _Shared(lambda: _state(sources), clock)
    sessions = _Shared(
        lambda: session_rows(sources.dispatcher.lives, now=clock(), limit=_MAX_ROWS),
        clock,
    )
    table["/api/state"] = state.reply
    table["/api/sessions"] = sessions.reply
    table["/api/round"] = functools.partial(_round, sources)
    return table


class _Shared:
    """An answer that is made at most once in FRESH_S, however many look."""

    def __init__(self, make: Callable[[], Any], clock: Callable[[], float]) -> None:
        self._make = make
        self._clock = clock
        self._made_at: float | None = None
        self._reply = _json({})

    async def reply(self, query: Mapping[str, str]) -> Reply:
        now = self._clock()
        if self._made_at is None or now - self._made_at > FRESH_S:
            self._made_at = now
            self._reply = _json(self._make())
        return self._reply


async def _file(name: str, media_type: str, query: Mapping[str, str]) -> Reply:
    return Reply(_read(name), media_type)


@functools.cache
def _read(name: str) -> bytes:
    return (resources.files(__package__) / name).read_bytes()


def _state(sources: PageSources) -> dict[str, Any]:
    config, dispatcher = sources.config, sources.dispatcher
    models = {link.info_message.model_name for link in dispatcher.fleet.targets if link.info is not None}
    return {
        "version": __version__,
        "model": ", ".join(sorted(models)),
        "policy": config.policy().kind.value,
        "time": asyncio.get_running_loop().time(),
        **fleet_state(dispatcher),
        "totals": totals(sources.registry),
    }


async def _round(sources: PageSources, query: Mapping[str, str]) -> Reply:
    try:
        return _json(await _round_document(sources, query))
    except PacelineError as error:
        wrong = isinstance(error, InvalidInputError)
        return _json({"error": str(error)}, HTTPStatus.BAD_REQUEST if wrong else HTTPStatus.BAD_GATEWAY)


async def _round_document(sources: PageSources, query: Mapping[str, str]) -> dict[str, Any]:
    fleet, tokenizer = sources.dispatcher.fleet, sources.tokenizer
    address, wanted = query.get("address", ""), query.get("session")
    if wanted is not None and not wanted.isdecimal():
        raise InvalidInputError(f"session is {wanted!r}; it must be a number")
    peers = [("target", link.address) for link in fleet.targets] + [("draft", link.address) for link in fleet.drafts]
    service = next((service for service, known in peers if known == address), "")
    if not service:
        raise InvalidInputError(f"{address!r} is no target or draft of this router")
    columns = await last_round(service, address, sources.plumbing, brief="kv" not in query)
    document = round_document(
        columns,
        None if wanted is None else int(wanted),
        lambda token: tokenizer.decode([token], skip_special_tokens=False),
    )
    return {"service": service, "address": address, **document}


def _json(value: Any, status: HTTPStatus = HTTPStatus.OK) -> Reply:
    return Reply(json.dumps(value, separators=(",", ":")).encode(), "application/json", status)
