"""Which of Paceline's services is at an address: each knows the health of its own full name alone."""

from __future__ import annotations

from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline.rpc import open_blocking_channel
from paceline.tls import TlsIdentity

_UNKNOWN_METHOD = "Method not found!"  # gRPC's own words, not a service's
# grpc.aio's word for a write that met the call's end, in place of the status that the peer ended it with: of 300 calls
# to a service of another kind that began with a write, 14.
LOST_STATUS = "Internal error from Core"
_TIMEOUT_S = 2.0
_KINDS = ("Router", "Target", "Draft")


def is_unknown_call(error: grpc.RpcError) -> bool:
    """Whether what the call went to does not know it."""
    return error.code() is grpc.StatusCode.UNIMPLEMENTED and error.details() == _UNKNOWN_METHOD


def is_status_lost(error: grpc.RpcError) -> bool:
    """Whether a failed call's status says nothing: what is there may not know it, or the connection broke."""
    return error.code() is grpc.StatusCode.INTERNAL and error.details() == LOST_STATUS


def service_kind(address: str, tls: TlsIdentity | None) -> str | None:
    """ "router", "target" or "draft"; "" for what is none of them, None where nothing answers. May take seconds."""
    with open_blocking_channel(address, tls) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        for kind in _KINDS:
            try:
                health.Check(health_pb2.HealthCheckRequest(service=f"paceline.v1.{kind}Service"), timeout=_TIMEOUT_S)
            except grpc.RpcError as error:
                if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    return None
            else:
                return kind.lower()
    return ""


def wrong_service(error: grpc.RpcError, address: str, tls: TlsIdentity | None, *, wanted: str) -> str:
    """What is at the address in place of the target or draft that a router's flag names there, and what to do.

    "" where the call, to the kind that is wanted, failed for another reason. Asks there, which may take seconds.
    """
    if not (is_unknown_call(error) or is_status_lost(error)):
        return ""
    found = service_kind(address, tls)
    if found is None or (found == wanted and is_status_lost(error)):
        return ""
    if found == wanted:
        return f"what answers there is a {found} of another version, or its --health-port: name its --port"
    what = f"a {found}" if found else "no service of Paceline"
    return f"what answers there is {what}, not a {wanted}: mend the router's --{wanted}s"
