"""What a router says of itself and its fleet, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.address import host_of
from paceline.codec import decode_tree_shape
from paceline.types import TreeShape
from paceline.v1 import router_pb2


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """Addresses are of replicas that are ready. Times in milliseconds, as services measured them when they warmed up,
    the slowest of a kind."""

    policy: str  # of the router's flags
    targets: tuple[str, ...]
    drafts: tuple[str, ...]
    step_ms: dict[int, float]  # by rows
    propose_ms: dict[TreeShape, dict[int, float]]  # by growth and sessions
    overlaps: bool = False  # a target verifies one half's trees while the other half's are drafted
    shares_host: bool = False  # a draft runs on a target's host


def decode_fleet(message: router_pb2.RouterServiceGetInfoResponse) -> FleetFacts:
    """Raises InvalidInputError for a shape that no tree has."""
    targets = [replica for replica in message.targets if replica.ready]
    drafts = [replica for replica in message.drafts if replica.ready]
    step_ms: dict[int, float] = {}
    for time in (time for target in targets for time in target.info.step_times):
        step_ms[time.rows] = max(time.ms, step_ms.get(time.rows, 0.0))
    propose_ms: dict[TreeShape, dict[int, float]] = {}
    for proposal in (proposal for draft in drafts for proposal in draft.info.propose_times):
        by_sessions = propose_ms.setdefault(decode_tree_shape(proposal.shape), {})
        by_sessions[proposal.sessions] = max(proposal.ms, by_sessions.get(proposal.sessions, 0.0))
    return FleetFacts(
        policy=message.speculative_policy,
        targets=tuple(target.address for target in targets),
        drafts=tuple(draft.address for draft in drafts),
        step_ms=step_ms,
        propose_ms=propose_ms,
        overlaps=any(target.info.overlaps_rounds for target in targets),
        shares_host=not {host_of(t.address) for t in targets}.isdisjoint(host_of(d.address) for d in drafts),
    )
