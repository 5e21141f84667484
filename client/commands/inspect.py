"""``paceline inspect``: the last round of a running draft and target, or every round from now on."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from client.aio import AsyncPacelineClient
from client.commands.command import Command, parse
from client.commands.connection_flags import ConnectionFlags
from client.round_json import round_json
from client.round_text import round_text
from client.rounds import RoundSource
from client.vocabulary import Vocabulary
from paceline.config import flag
from paceline.defaults import DEFAULT_MODEL_PATH
from paceline.errors import UnavailableError
from paceline.tls import TlsIdentity
from paceline.v1 import router_pb2


@dataclass(frozen=True, slots=True)
class InspectConfig(ConnectionFlags):
    """Show the last round of a draft and of a target: trees, accepted paths, rows, KV slots, timings."""

    target: str = flag("", help="address of a target; with neither this nor --draft, the router's first that are ready")
    draft: str = flag("", help="address of a draft")
    model_path: str = flag(DEFAULT_MODEL_PATH, help="folder of the tokenizer that shows tokens; empty: bare numbers")
    json: bool = flag(False, help="as JSON; with --watch one object a line")
    watch: bool = flag(False, help="every round from now on, until Ctrl-C")


def main(argv: Sequence[str]) -> int:
    config = parse(InspectConfig, argv, command="inspect")
    vocabulary = _vocabulary(config)
    asyncio.run(_watch(config, vocabulary) if config.watch else _show_last(config, vocabulary))
    return 0


async def _show_last(config: InspectConfig, vocabulary: Vocabulary) -> None:
    sources = await _sources(config)
    views = await asyncio.gather(*(source.last() for source in sources))
    pairs = list(zip(sources, views, strict=True))
    if config.json:
        document = {source.service: {"address": source.address, **round_json(view)} for source, view in pairs}
        print(json.dumps(document, indent=2))
        return
    print("\n\n".join(f"{source.service} {source.address}  {round_text(view, vocabulary)}" for source, view in pairs))


async def _watch(config: InspectConfig, vocabulary: Vocabulary) -> None:
    async def show(source: RoundSource) -> None:
        async for view in source.rounds():
            if config.json:
                document = {"service": source.service, "address": source.address, **round_json(view)}
                print(json.dumps(document), flush=True)
            else:
                print(f"{source.service} {source.address}  {round_text(view, vocabulary)}\n", flush=True)

    await asyncio.gather(*(show(source) for source in await _sources(config)))


async def _sources(config: InspectConfig) -> list[RoundSource]:
    """The services to show, and a word on a kind that is not. Raises UnavailableError where none is ready."""
    named = [("target", config.target), ("draft", config.draft)]
    if not config.target and not config.draft:
        async with AsyncPacelineClient(config.router, credentials=config.credentials()) as client:
            info = await client.info()
        kinds = {"target": info.targets, "draft": info.drafts}
        named = [(service, _first_ready(replicas)) for service, replicas in kinds.items()]
        for service, address in named:
            if not address:
                print(_absence(service, kinds[service]), file=sys.stderr)
    files = config.tls_files()
    tls = None if files is None else TlsIdentity(files)
    sources = [RoundSource(service, address, tls) for service, address in named if address]
    if not sources:
        raise UnavailableError(f"the router at {config.router} has no service that is ready; see paceline info")
    return sources


def _vocabulary(config: InspectConfig) -> Vocabulary:
    """The default model need not be on this machine. Raises ModelLoadError for another that is not."""
    is_there = config.model_path != DEFAULT_MODEL_PATH or Path(DEFAULT_MODEL_PATH).is_dir()
    return Vocabulary.load(config.model_path if is_there else "")


def _first_ready(replicas: Sequence[router_pb2.ReplicaState]) -> str:
    return next((replica.address for replica in replicas if replica.ready), "")


def _absence(service: str, replicas: Sequence[router_pb2.ReplicaState]) -> str:
    """Why none of the kind is shown."""
    if not replicas:
        return f"{service}: the router knows none"
    why = "; ".join(f"{replica.address}: {replica.message or 'no word from it yet'}" for replica in replicas)
    return f"{service}: none is ready: {why}"


COMMAND = Command("inspect", "show the last round of a draft and a target", main)
