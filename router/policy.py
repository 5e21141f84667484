"""Whether and how far to speculate: a pure function of policy, load and the request's own word."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from paceline.types import Rung, SpeculationDecision, TreeShape


class PolicyKind(enum.Enum):
    """When a router speculates where a request does not say."""

    OFF = "off"
    ALWAYS = "always"
    THRESHOLD = "threshold"  # while a target's batch is small
    ADAPTIVE = "adaptive"  # as far as it gives the most tokens a second


@dataclass(frozen=True, slots=True)
class Policy:
    """The configured policy. threshold and hysteresis count decoding requests and matter to THRESHOLD alone.

    shape: of all requests; under ADAPTIVE, while services have not said what trees cost.
    """

    kind: PolicyKind
    shape: TreeShape
    threshold: int = 0
    hysteresis: int = 0

    @property
    def resume_level(self) -> int:
        """Speculation that went off comes back at this many decoding requests or fewer."""
        return max(1, self.threshold - self.hysteresis)


@dataclass(frozen=True, slots=True)
class Override:
    """A request's own word: plain decoding (disable), or a shape of its own."""

    disable: bool = False
    shape: TreeShape | None = None


@dataclass(frozen=True, slots=True)
class Switch:
    """Whether the policy lets one target speculate, and why. Changes by ``turned`` alone."""

    on: bool
    reason: str


def initial_switch(policy: Policy) -> Switch:
    """Of a target whose load is not known yet."""
    return Switch(policy.kind is not PolicyKind.OFF, f"policy:{policy.kind.value}")


def turned(policy: Policy, switch: Switch, decoding_requests: int) -> Switch:
    """The switch after a load report; the same object where nothing changes.

    Goes off above the threshold and on again at resume_level: between the two it stays as it is, so that a
    batch that hovers at the threshold does not flap. decoding_requests leaves out those still in prefill.
    """
    if policy.kind is not PolicyKind.THRESHOLD:
        return switch
    if switch.on and decoding_requests > policy.threshold:
        return Switch(False, f"threshold:{decoding_requests}>{policy.threshold}")
    if not switch.on and decoding_requests <= policy.resume_level:
        return Switch(True, f"threshold:{decoding_requests}<={policy.resume_level}")
    return switch


def decide(
    policy: Policy, switch: Switch, *, override: Override, draft: str, ladder: tuple[Rung, ...] = ()
) -> SpeculationDecision:
    """The decision for one request. draft: address of the replica that placement chose, "" for none.

    ladder: what ADAPTIVE planned for it.
    Under THRESHOLD the ladder holds the bound that the switch waits for, so that a target reacts to a burst
    by itself; the draft stays named while the ladder says off, so that its KV keeps up.
    """
    if override.disable:
        return SpeculationDecision(reason="request")
    if override.shape is None and policy.kind is PolicyKind.OFF:
        return SpeculationDecision(reason=switch.reason)
    if not draft:
        return SpeculationDecision(reason="no-draft")
    if override.shape is not None:
        return SpeculationDecision(draft, (Rung(0, override.shape),), "request")
    if policy.kind is PolicyKind.ADAPTIVE:
        return SpeculationDecision(draft, ladder, switch.reason)
    bound = 0
    if policy.kind is PolicyKind.THRESHOLD:
        bound = policy.threshold if switch.on else policy.resume_level
    return SpeculationDecision(draft, (Rung(bound, policy.shape),), switch.reason)


def is_planned(policy: Policy, override: Override) -> bool:
    """Whether the adaptive policy plans for a request."""
    return policy.kind is PolicyKind.ADAPTIVE and not override.disable and override.shape is None


def wants_draft(policy: Policy, override: Override) -> bool:
    """Whether a draft is to be chosen for a request at all."""
    return not override.disable and (override.shape is not None or policy.kind is not PolicyKind.OFF)
