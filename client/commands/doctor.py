"""``paceline doctor``: looks at a running deployment and says what to mend."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from client.client import PacelineClient
from client.commands.command import Command, parse
from client.commands.connection_flags import ConnectionFlags
from client.credentials import Credentials
from client.diagnosis import Deployment, Finding, Level, diagnose
from client.probes import Prober
from client.request import GenerateOptions, Sampling
from paceline.config import flag, require
from paceline.errors import PacelineError
from paceline.tls import TlsIdentity
from paceline.v1 import router_pb2

_ASKED_AT_ONCE = 16
_ANSWER_S = 30.0


@dataclass(frozen=True, slots=True)
class DoctorConfig(ConnectionFlags):
    """Check a running deployment: reach, models, heads, versions, clocks, certificates, one answer.

    Raises ConfigError naming the flag.
    """

    metrics_port: int = flag(0, help="port of every service's metrics, which tell the time; 0 compares no clocks")
    ask: bool = flag(True, help="send one short request; --no-ask leaves it out")
    json: bool = flag(False, help="as JSON")

    def __post_init__(self) -> None:
        require(0 <= self.metrics_port < 65536, "metrics_port", self.metrics_port, "0 to 65535")


def main(argv: Sequence[str]) -> int:
    """0: no problem, warnings or not; 1: a problem. A router that cannot be asked raises its error."""
    config = parse(DoctorConfig, argv, command="doctor")
    credentials = config.credentials()
    with PacelineClient(config.router, request_timeout_s=_ANSWER_S, credentials=credentials) as client:
        reply = client.info()
        findings = diagnose(_look(config, credentials, reply), now_s=time.time())
        if config.ask and any(target.ready for target in reply.targets):  # else it would wait for one, and say so late
            findings.append(_answer(client))
    if config.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
    else:
        print("\n".join(_lines(findings)))
    return int(any(finding.level is Level.PROBLEM for finding in findings))


def _look(config: DoctorConfig, credentials: Credentials, reply: router_pb2.RouterServiceGetInfoResponse) -> Deployment:
    tls = None if credentials.tls is None else TlsIdentity(credentials.tls)
    prober = Prober(tls, credentials.metadata, config.metrics_port)
    named = [("router", config.router)]
    named += [("target", state.address) for state in reply.targets]
    named += [("draft", state.address) for state in reply.drafts]
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        return Deployment(reply, list(pool.map(lambda who: prober.ask(*who), named)))


def _answer(client: PacelineClient) -> Finding:
    begun_s = time.monotonic()
    try:
        answer = client.generate("Hello", sampling=Sampling(max_tokens=4), options=GenerateOptions()).result()
    except PacelineError as error:
        return Finding(Level.PROBLEM, "request", f"a short request failed: {error}")
    return Finding(Level.OK, "request", f"{len(answer.token_ids)} tokens in {time.monotonic() - begun_s:.2f} s")


def _lines(findings: Sequence[Finding]) -> list[str]:
    lines = []
    for finding in findings:
        lines.append(f"{finding.level:8} {finding.subject}: {finding.message}")
        if finding.remedy:
            lines.append(f"{'':8} -> {finding.remedy}")
    counts = [(level, sum(finding.level is level for finding in findings)) for level in (Level.PROBLEM, Level.WARNING)]
    summary = ", ".join(f"{count} {level}{'s' * (count != 1)}" for level, count in counts if count)
    return [*lines, summary or "all is well"]


COMMAND = Command("doctor", "check a running deployment and say what to mend", main)
