"""What a router says of a replica that it does not use, for a terminal."""

from __future__ import annotations

from paceline.v1 import router_pb2


def why_not_ready(replica: router_pb2.ReplicaState) -> str:
    """Address, for how long, and why; a router of an earlier version does not say for how long."""
    lasts = f" for {_duration(replica.unchanged_s)}" if replica.unchanged_s else ""
    return f"{replica.address}  not ready{lasts}: {replica.message or 'no word from it yet'}"


def _duration(seconds: float) -> str:
    """In the largest unit of which it has two, else in seconds."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
