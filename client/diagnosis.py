"""What is wrong with a deployment, from what its router and each of its services say, and what mends it."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import paceline
from client.probes import Probe
from paceline.link_fault import is_hang
from paceline.v1 import router_pb2

_CLOCK_SLACK_S = 2.0
_DAY_S = 86_400.0
_RENEW_WITHIN_S = 7 * _DAY_S


class Level(enum.StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"  # works, but not as well as it could, or not for long
    PROBLEM = "problem"  # requests fail or will


@dataclass(frozen=True, slots=True)
class Finding:
    """subject: a service and its address, or "fleet"."""

    level: Level
    subject: str
    message: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Deployment:
    """reply: the router's own view. probes: of the router first, then of every target and draft that it names."""

    reply: router_pb2.RouterServiceGetInfoResponse
    probes: Sequence[Probe]

    def state(self, probe: Probe) -> router_pb2.ReplicaState | None:
        """What the router says of that target or draft."""
        replicas = {"target": self.reply.targets, "draft": self.reply.drafts}.get(probe.service, ())
        return next((replica for replica in replicas if replica.address == probe.address), None)

    def of(self, service: str) -> list[Probe]:
        return [probe for probe in self.probes if probe.service == service]


def diagnose(deployment: Deployment, *, now_s: float) -> list[Finding]:
    """Everything that was looked at, in order: each service, then the fleet. now_s: Unix time."""
    findings = [
        finding
        for probe in deployment.probes
        for check in (_reach(deployment, probe), _clock(probe), _certificate(probe, now_s))
        for finding in check
    ]
    for fleet_check in (_numbers, _tokenizers, _models, _heads, _versions):
        findings += fleet_check(deployment)
    return findings


def _reach(deployment: Deployment, probe: Probe) -> Iterator[Finding]:
    subject = f"{probe.service} {probe.address}"
    state = deployment.state(probe)
    if state is not None and not state.ready:
        why = state.message or "no word from it yet"
        remedy = f"{'restart' if is_hang(why) else 'start'} it, or take it out of the router's --{probe.service}s"
        yield Finding(Level.PROBLEM, subject, f"the router does not use it: {why}", "" if "draining" in why else remedy)
    elif state is not None and is_hang(probe.error):
        yield Finding(
            Level.WARNING,
            subject,
            f"the router has not missed it yet, but {probe.error}",
            "ask doctor again in some seconds; restart it where it still says nothing",
        )
    elif probe.error and state is not None:
        yield Finding(
            Level.WARNING,
            subject,
            f"the router reaches it, this machine does not: {probe.error}",
            "nothing, if a network policy is to keep others out; else open its port to this machine",
        )
    elif probe.error:
        yield Finding(Level.PROBLEM, subject, probe.error)
    elif probe.service == "router" and deployment.reply.draining:
        yield Finding(
            Level.WARNING,
            subject,
            "it drains: what runs is answered, new requests are refused",
            "send new ones to another router; it ends by itself",
        )
    elif not probe.ready:
        yield Finding(Level.WARNING, subject, "it answers but says that it is not ready", "wait, or read its log")
    else:
        info = probe.info
        yield Finding(Level.OK, subject, f"ready, version {info.version}, {info.model_name or 'no model'}")


def _clock(probe: Probe) -> Iterator[Finding]:
    if probe.clock_error and not probe.error:
        yield Finding(
            Level.WARNING,
            f"{probe.service} {probe.address}",
            f"its clock was not compared: {probe.clock_error}",
            "start it with that --metrics-port, or leave doctor's out",
        )
    ahead_s = probe.clock_ahead_s
    if ahead_s is not None and abs(ahead_s) > _CLOCK_SLACK_S:
        way = "ahead of" if ahead_s > 0 else "behind"
        yield Finding(
            Level.WARNING,
            f"{probe.service} {probe.address}",
            f"its clock is {abs(ahead_s):.0f} s {way} this machine's",
            "run NTP on both: certificates are refused and logs mislead where clocks differ",
        )


def _certificate(probe: Probe, now_s: float) -> Iterator[Finding]:
    if probe.certificate_ends_s is None:
        return
    left_s = probe.certificate_ends_s - now_s
    subject = f"{probe.service} {probe.address}"
    if left_s <= 0:
        yield Finding(Level.PROBLEM, subject, "its certificate has expired", "renew the files of its --tls-cert")
    elif left_s < _RENEW_WITHIN_S:
        yield Finding(
            Level.WARNING,
            subject,
            f"its certificate ends in {left_s / _DAY_S:.1f} days",
            "renew the files of its --tls-cert; it reads them again by itself",
        )


def _numbers(deployment: Deployment) -> Iterator[Finding]:
    reply = deployment.reply
    if not any(target.ready for target in reply.targets):
        yield Finding(
            Level.PROBLEM, "fleet", "no target is ready, so nothing is answered", "start one that --targets names"
        )
    if not any(draft.ready for draft in reply.drafts) and reply.speculative_policy != "off":
        yield Finding(
            Level.WARNING,
            "fleet",
            "no draft is ready: answers come without speculation",
            "start one that --drafts names, or run the router with --speculative-policy off",
        )
    if reply.max_queued_requests and reply.queued_requests * 2 > reply.max_queued_requests:
        waiting = f"{reply.queued_requests} of {reply.max_queued_requests} requests wait"
        yield Finding(Level.WARNING, "fleet", f"{waiting} at this router", "add targets")


def _tokenizers(deployment: Deployment) -> Iterator[Finding]:
    ours = deployment.reply.info.tokenizer_fingerprint
    for probe in deployment.of("target"):
        theirs = probe.info.tokenizer_fingerprint
        if theirs and ours and theirs != ours:
            yield Finding(
                Level.PROBLEM,
                f"target {probe.address}",
                f"its tokenizer is {theirs[:12]}, the router's is {ours[:12]}",
                "give router and target one --model-path",
            )


def _models(deployment: Deployment) -> Iterator[Finding]:
    models = _by_value(deployment.of("target"), "model_fingerprint")
    if len(models) > 1:
        shown = "; ".join(f"{value[:12]} on {', '.join(addresses)}" for value, addresses in sorted(models.items()))
        yield Finding(
            Level.WARNING,
            "fleet",
            f"the targets run {len(models)} models: {shown}",
            "nothing during an upgrade: a request stays with the model that began it; else give all one --model-path",
        )


def _heads(deployment: Deployment) -> Iterator[Finding]:
    targets = deployment.of("target")
    wanted = {_head(probe) for probe in targets if probe.info.feature_id}
    for probe in deployment.of("draft"):
        if probe.info.service and wanted and _head(probe) not in wanted:
            yield Finding(
                Level.PROBLEM,
                f"draft {probe.address}",
                f"no target has its head {probe.info.head_fingerprint[:12]} (feature {probe.info.feature_id[:12]})",
                "give it the targets' --speculative-draft-model-path",
            )
    served = {_head(probe) for probe in deployment.of("draft") if probe.info.service}
    for probe in targets:
        if probe.info.feature_id and served and _head(probe) not in served:
            yield Finding(
                Level.WARNING,
                f"target {probe.address}",
                f"no draft has its head {probe.info.head_fingerprint[:12]}: it decodes without speculation",
                "add drafts with its --speculative-draft-model-path",
            )


def _versions(deployment: Deployment) -> Iterator[Finding]:
    versions = _by_value(deployment.probes, "version")
    versions.setdefault(paceline.__version__, []).append("this command")
    if len(versions) > 1:
        shown = "; ".join(f"{value} on {', '.join(places)}" for value, places in sorted(versions.items()))
        remedy = "nothing during an upgrade; else bring all to one version"
        yield Finding(Level.WARNING, "fleet", f"versions differ: {shown}", remedy)


def _head(probe: Probe) -> tuple[str, str]:
    return probe.info.head_fingerprint, probe.info.feature_id


def _by_value(probes: Sequence[Probe], name: str) -> dict[str, list[str]]:
    """Addresses by what they say, those left out that say nothing."""
    found: dict[str, list[str]] = {}
    for probe in probes:
        if value := str(getattr(probe.info, name)):
            found.setdefault(value, []).append(probe.address)
    return found
