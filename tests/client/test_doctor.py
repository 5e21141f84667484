"""``paceline doctor`` names what is wrong, and what mends it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import grpc
import pytest

from client.cli import main
from client.diagnosis import Deployment, Finding, Level, diagnose
from client.probes import Probe
from paceline.link_fault import is_hang, link_fault
from paceline.v1 import common_pb2, router_pb2
from tests.support.certificates import Authority
from tests.support.small_fleet import SmallFleet, SmallRouter


@pytest.fixture
def fleet() -> Iterator[SmallFleet]:
    fleet = SmallFleet()
    yield fleet
    fleet.close()


def doctor(capsys: pytest.CaptureFixture[str], router: SmallRouter, *flags: str) -> tuple[int, list[dict[str, str]]]:
    code = main(["doctor", "--router", router.address, "--json", *flags])
    return code, json.loads(capsys.readouterr().out)


def worst(findings: list[dict[str, str]]) -> list[tuple[str, str, str]]:
    """Level, subject and text of those that are not ok."""
    return [
        (finding["level"], finding["subject"], f"{finding['message']}; {finding['remedy']}")
        for finding in findings
        if finding["level"] != "ok"
    ]


def test_a_sound_fleet_is_well(fleet: SmallFleet, capsys: pytest.CaptureFixture[str]) -> None:
    router = fleet.router([fleet.target().state()], [fleet.draft().state()])
    assert main(["doctor", "--router", router.address]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "all is well"
    assert any(line.startswith("ok") and "request: 1 tokens" in line for line in lines)


def test_a_draft_of_another_head_is_a_problem(fleet: SmallFleet, capsys: pytest.CaptureFixture[str]) -> None:
    stranger = fleet.draft(head_fingerprint="head-b", feature_id="fc-b")
    router = fleet.router([fleet.target().state()], [fleet.draft().state(), stranger.state()])
    code, findings = doctor(capsys, router)
    ((level, subject, text),) = worst(findings)
    assert (code, level, subject) == (1, "problem", f"draft {stranger.address}")
    assert "head-b" in text
    assert "--speculative-draft-model-path" in text


def test_a_service_that_is_gone_is_named_with_the_routers_words(
    fleet: SmallFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = router_pb2.ReplicaState(address="127.0.0.1:1", message="Connection refused")
    router = fleet.router([gone], [])
    code, findings = doctor(capsys, router)
    assert code == 1
    found = worst(findings)
    assert ("problem", "target 127.0.0.1:1") in [entry[:2] for entry in found]
    assert "Connection refused" in found[0][2]
    assert any("no target is ready" in text for *_, text in found)
    assert any("without speculation" in text for *_, text in found)
    assert all(finding["subject"] != "request" for finding in findings), "nothing is asked that nobody can answer"


def test_a_service_that_only_the_router_reaches_is_a_warning(
    fleet: SmallFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    hidden = router_pb2.ReplicaState(address="127.0.0.1:1", ready=True, info=common_pb2.ServiceInfo(service="draft"))
    router = fleet.router([fleet.target().state()], [hidden])
    code, findings = doctor(capsys, router)
    assert code == 0
    assert [entry[:2] for entry in worst(findings)] == [("warning", "draft 127.0.0.1:1")]


def test_no_router_is_its_own_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--router", "127.0.0.1:1"]) == 4
    assert "nothing answers at 127.0.0.1:1" in capsys.readouterr().err


def test_a_clock_that_is_behind_is_told_by_the_metrics_date(
    fleet: SmallFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    class Behind(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def date_time_string(self, timestamp: float | None = None) -> str:
            return "Sun, 06 Nov 1994 08:49:37 GMT"

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Behind)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        router = fleet.router([fleet.target().state()], [fleet.draft().state()])
        code, findings = doctor(capsys, router, f"--metrics-port={server.server_port}", "--no-ask")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert code == 0
    assert all("s behind this machine's" in text for *_, text in worst(findings))
    assert len(worst(findings)) == 3


def test_certificates_that_end_soon_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority = Authority(tmp_path)
    fleet = SmallFleet(authority.issue("service", days=2))
    mine = authority.issue("me")
    try:
        router = fleet.router([fleet.target().state()], [fleet.draft().state()])
        tls = [f"--tls-cert={mine.cert}", f"--tls-key={mine.key}", f"--tls-ca={mine.ca}"]
        code, findings = doctor(capsys, router, *tls)
    finally:
        fleet.close()
    assert code == 0
    assert len(worst(findings)) == 3
    assert all("its certificate ends in 2.0 days" in text for *_, text in worst(findings))


def found(*probes: Probe, reply: router_pb2.RouterServiceGetInfoResponse | None = None) -> list[Finding]:
    reply = reply or router_pb2.RouterServiceGetInfoResponse(speculative_policy="off")
    for probe in probes:
        if probe.service == "target":
            reply.targets.append(router_pb2.ReplicaState(address=probe.address, ready=True))
    return [finding for finding in diagnose(Deployment(reply, probes), now_s=0.0) if finding.level is not Level.OK]


def target(address: str, **info: str) -> Probe:
    return Probe("target", address, common_pb2.ServiceInfo(service="target", **info), ready=True)


def test_two_models_and_versions_are_warnings_for_they_are_an_upgrade() -> None:
    findings = found(
        target("a:1", model_fingerprint="old", version="0.1.0"), target("b:1", model_fingerprint="new", version="0.2.0")
    )
    assert [finding.level for finding in findings] == [Level.WARNING, Level.WARNING]
    assert findings[0].message == "the targets run 2 models: new on b:1; old on a:1"
    assert "0.2.0 on b:1" in findings[1].message


def test_another_tokenizer_is_a_problem() -> None:
    reply = router_pb2.RouterServiceGetInfoResponse(
        info=common_pb2.ServiceInfo(tokenizer_fingerprint="words"), speculative_policy="off"
    )
    (finding,) = found(target("a:1", tokenizer_fingerprint="letters"), reply=reply)
    assert finding.level is Level.PROBLEM
    assert "letters" in finding.message
    assert "--model-path" in finding.remedy


def test_an_expired_certificate_is_a_problem() -> None:
    info = common_pb2.ServiceInfo(service="target")
    (finding,) = found(Probe("target", "a:1", info, ready=True, certificate_ends_s=-5.0))
    assert (finding.level, finding.message) == (Level.PROBLEM, "its certificate has expired")


def test_a_clock_that_was_to_be_compared_and_was_not_is_a_warning() -> None:
    info = common_pb2.ServiceInfo(service="target")
    (finding,) = found(Probe("target", "a:1", info, ready=True, clock_error="no metrics answer at a:9"))
    assert finding.level is Level.WARNING
    assert "not compared: no metrics answer at a:9" in finding.message


def test_a_service_that_hangs_is_to_be_restarted() -> None:
    hangs = "what answers there took longer than allowed: see whether it hangs or has too much to do"
    state = router_pb2.ReplicaState(address="a:2", message=hangs)
    reply = router_pb2.RouterServiceGetInfoResponse(speculative_policy="off", drafts=[state])
    finding, *_ = found(target("a:1"), Probe("draft", "a:2", common_pb2.ServiceInfo(), error="no answer"), reply=reply)
    assert finding.subject == "draft a:2"
    assert finding.remedy == "restart it, or take it out of the router's --drafts"


def test_a_service_that_hangs_since_a_moment_ago_is_not_taken_for_one_behind_a_closed_port() -> None:
    hangs = "what listens at a:2 says nothing: see whether its process hangs"
    reply = router_pb2.RouterServiceGetInfoResponse(
        speculative_policy="off", drafts=[router_pb2.ReplicaState(address="a:2", ready=True)]
    )
    finding, *_ = found(target("a:1"), Probe("draft", "a:2", common_pb2.ServiceInfo(), error=hangs), reply=reply)
    assert (finding.subject, finding.level) == ("draft a:2", Level.WARNING)
    assert "restart it where it still says nothing" in finding.remedy


def test_a_port_that_hangs_up_is_no_service_that_hangs() -> None:
    assert is_hang(link_fault(grpc.StatusCode.UNAVAILABLE, "ping timeout"))
    assert not is_hang(link_fault(grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses; Socket closed"))


def test_a_router_that_drains_is_told_apart_from_one_that_loads() -> None:
    reply = router_pb2.RouterServiceGetInfoResponse(speculative_policy="off", draining=True)
    (finding,) = found(Probe("router", "r:1", common_pb2.ServiceInfo(service="router")), target("a:1"), reply=reply)
    assert (finding.subject, finding.level) == ("router r:1", Level.WARNING)
    assert finding.message.startswith("it drains")


def test_a_full_queue_asks_for_targets() -> None:
    reply = router_pb2.RouterServiceGetInfoResponse(speculative_policy="off", queued_requests=5, max_queued_requests=8)
    (finding,) = found(target("a:1"), reply=reply)
    assert finding.message == "5 of 8 requests wait at this router"
