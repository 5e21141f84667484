"""A call that went to the wrong service: which one is at the address, and where the right one listens."""

from __future__ import annotations

from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline.rpc import open_blocking_channel
from paceline.tls import TlsIdentity

_UNKNOWN_METHOD = "Method not found!"  # gRPC's own words, not a service's
_TIMEOUT_S = 2.0
_KINDS = ("Router", "Target", "Draft")
_PORTS = "unless told otherwise a router listens on 7100, a target on 7200, a draft on 7300; paceline info lists them"


def mistaken_service(error: grpc.RpcError, address: str, tls: TlsIdentity | None) -> str:
    """What the caller should know about the address, where it serves no such method; "" otherwise.

    Asks the health service there, which may take seconds.
    """
    if error.code() is not grpc.StatusCode.UNIMPLEMENTED or error.details() != _UNKNOWN_METHOD:
        return ""
    with open_blocking_channel(address, tls) as channel:
        found = next((kind.lower() for kind in _KINDS if _serves(channel, kind)), "")
    what = f"is a {found} service, which does not know this call" if found else "is no service of Paceline"
    return f"what answers at {address} {what}: name another address; {_PORTS}"


def _serves(channel: grpc.Channel, kind: str) -> bool:
    """Each service knows the health of its own full name alone."""
    health: Any = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest(service=f"paceline.v1.{kind}Service")
    try:
        health.Check(request, timeout=_TIMEOUT_S)
    except grpc.RpcError:
        return False
    return True
