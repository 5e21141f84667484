"""``paceline inspect``: the last round of a running draft and target, or every round from now on."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from client.aio import AsyncPacelineClient
from client.commands.command import Command, parse
from client.commands.connection_flags import ConnectionFlags
from client.replica_words import why_not_ready
from client.round_json import round_json
from client.round_text import round_text
from client.rounds import RoundSource
from client.terminal import say_error
from client.vocabulary import Vocabulary
from paceline.config import flag
from paceline.defaults import DEFAULT_MODEL_PATH
from paceline.errors import PacelineError, UnavailableError
from paceline.tls import TlsIdentity
from paceline.v1 import router_pb2

_WorkT = TypeVar("_WorkT")


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
    return asyncio.run(_watch(config, vocabulary) if config.watch else _show_last(config, vocabulary))


async def _show_last(config: InspectConfig, vocabulary: Vocabulary) -> int:
    """Shows those that answer; the exit code is that of the first that does not."""
    sources = await _sources(config)
    answers = await asyncio.gather(*(_said(source, source.last()) for source in sources))
    pairs = [(source, view) for source, view in zip(sources, answers, strict=True) if not isinstance(view, int)]
    if config.json and pairs:
        document = {source.service: {"address": source.address, **round_json(view)} for source, view in pairs}
        print(json.dumps(document, indent=2))
    elif pairs:
        texts = [f"{source.service} {source.address}  {round_text(view, vocabulary)}" for source, view in pairs]
        print("\n\n".join(texts))
    return next((code for code in answers if isinstance(code, int)), 0)


async def _watch(config: InspectConfig, vocabulary: Vocabulary) -> int:
    """Shows each until it ends; the exit code is that of the first that did not end by itself."""

    async def show(source: RoundSource) -> None:
        async for view in source.rounds():
            if config.json:
                document = {"service": source.service, "address": source.address, **round_json(view)}
                print(json.dumps(document), flush=True)
            else:
                print(f"{source.service} {source.address}  {round_text(view, vocabulary)}\n", flush=True)

    ends = await asyncio.gather(*(_said(source, show(source)) for source in await _sources(config)))
    return next((code for code in ends if code is not None), 0)


async def _said(source: RoundSource, work: Awaitable[_WorkT]) -> _WorkT | int:
    """What the work gives; of one that fails the exit code, and why on stderr at once."""
    try:
        return await work
    except PacelineError as error:
        say_error(f"paceline inspect: {source.service}", error)
        return error.exit_code


async def _sources(config: InspectConfig) -> list[RoundSource]:
    """The services to show, and a word on the others. Raises UnavailableError where none is ready."""
    named = [("target", config.target), ("draft", config.draft)]
    if not config.target and not config.draft:
        async with AsyncPacelineClient(config.router, credentials=config.credentials()) as client:
            info = await client.info()
        kinds = {"target": info.targets, "draft": info.drafts}
        named = [(service, _first_ready(replicas)) for service, replicas in kinds.items()]
        for service, replicas in kinds.items():
            for line in _others(service, replicas):
                print(line, file=sys.stderr)
    files = config.tls_files()
    tls = None if files is None else TlsIdentity(files)
    sources = [RoundSource(service, address, tls) for service, address in named if address]
    if not sources:
        raise UnavailableError(f"the router at {config.router} has no service that is ready; see paceline doctor")
    return sources


def _vocabulary(config: InspectConfig) -> Vocabulary:
    """The default model need not be on this machine. Raises ModelLoadError for another that is not."""
    is_there = config.model_path != DEFAULT_MODEL_PATH or Path(DEFAULT_MODEL_PATH).is_dir()
    return Vocabulary.load(config.model_path if is_there else "")


def _first_ready(replicas: Sequence[router_pb2.ReplicaState]) -> str:
    return next((replica.address for replica in replicas if replica.ready), "")


def _others(service: str, replicas: Sequence[router_pb2.ReplicaState]) -> list[str]:
    """Lines on those that are not shown: all but the first that is ready."""
    if not replicas:
        return [f"{service}: the router knows none"]
    ready = [replica.address for replica in replicas if replica.ready]
    lines = [f"{service} {why_not_ready(replica)}" for replica in replicas if not replica.ready]
    if ready[1:]:
        lines.append(f"{service}: ready as well, name one by --{service}: {', '.join(ready[1:])}")
    return lines


COMMAND = Command("inspect", "show the last round of a draft and a target", main)
