"""``paceline info``: a router and its fleet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.json_format import MessageToDict

from client.commands.command import Command, parse
from client.commands.connection_flags import ConnectionFlags
from client.replica_words import why_not_ready
from paceline.config import flag
from paceline.v1 import router_pb2


@dataclass(frozen=True, slots=True)
class InfoConfig(ConnectionFlags):
    """Show a router, its targets and drafts, and their limits."""

    json: bool = flag(False, help="as JSON")


def main(argv: Sequence[str]) -> int:
    config = parse(InfoConfig, argv, command="info")
    with config.client() as client:
        reply = client.info()
    if config.json:
        print(json.dumps(MessageToDict(reply, preserving_proto_field_name=True), indent=2))
    else:
        print("\n".join(_lines(reply, config.router)))
    return 0


def _lines(reply: router_pb2.RouterServiceGetInfoResponse, address: str) -> list[str]:
    info = reply.info
    lines = [
        f"router    {address}  {info.model_name}  version {info.version}  policy {reply.speculative_policy}  "
        f"queued {reply.queued_requests} of {reply.max_queued_requests}{'  draining' if reply.draining else ''}"
    ]
    for kind, replicas in (("target", reply.targets), ("draft", reply.drafts)):
        lines += [f"{kind:9} {_replica(replica)}" for replica in replicas]
    return lines


def _replica(replica: router_pb2.ReplicaState) -> str:
    if not replica.ready:
        return why_not_ready(replica)
    info = replica.info
    parts = [replica.address, "ready", f"running {replica.running_requests} of {info.max_running_requests}"]
    parts += [f"{info.dtype} on {info.device}", f"{info.num_pages} pages of {info.page_size} tokens"]
    if info.service == "target":
        parts += [f"tp {info.tp_size}", f"context {info.context_length}"]
    return "  ".join(parts)


COMMAND = Command("info", "show a router and its fleet", main)
