"""A fleet with mTLS, API keys, traces and JSON logs, while certificates change and a draft comes back."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from client.client import PacelineClient
from client.completion import Completion
from client.credentials import Credentials
from client.launcher import Fleet
from client.launcher_config import FleetConfig
from client.request import Sampling
from paceline.errors import AccessError, UnavailableError
from paceline.tls import TlsFiles
from tests.support.certificates import Authority
from tests.support.otlp_collector import Collector, collecting
from tests.support.services import PATIENT, WAIT_S, ask

pytestmark = pytest.mark.slow

KEY = "pl_the-tenants-key"
PROMPTS = ["Name three colours.", "Count to five.", "What is a bicycle?", "Say hello."]
SAMPLING = Sampling(max_tokens=24, temperature=0.0, ignore_eos=True)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture
def fleet(authority: Authority, collector: Collector, tmp_path: Path) -> Iterator[Fleet]:
    keys = tmp_path / "keys.txt"
    keys.write_text(f"acme sha256:{hashlib.sha256(KEY.encode()).hexdigest()}\n")
    shared = ("--otlp-traces-endpoint", collector.url, "--log-format", "json")
    config = FleetConfig(
        dtype="float32",
        tls=authority.issue("fleet"),
        log_dir=str(tmp_path / "logs"),
        router_flags=(*shared, "--api-keys", str(keys), "--trace-sample-ratio", "1", "--log-requests"),
        target_flags=(*shared, *PATIENT),
        draft_flags=shared,
    )
    with Fleet(config) as fleet:
        yield fleet


def clients(fleet: Fleet, tls: TlsFiles | None, key: str = KEY) -> PacelineClient:
    return PacelineClient(fleet.router_address, request_timeout_s=WAIT_S, credentials=Credentials(tls, key))


def test_a_secured_fleet_serves_through_a_change_of_certificates_and_is_seen_through(
    fleet: Fleet, authority: Authority, collector: Collector, tmp_path: Path
) -> None:
    mine = authority.issue("client")
    with clients(fleet, mine) as client:
        wanted = [ask(client, prompt, SAMPLING) for prompt in PROMPTS]
        assert all(answer.stats.speculative_rounds for answer in wanted)
        for tls, key, error, message in (
            (None, KEY, UnavailableError, "it speaks TLS: give --tls-ca"),
            (TlsFiles("", "", mine.ca), KEY, UnavailableError, "nobody in without a certificate"),
            (mine, "pl_other", AccessError, "not known here"),
        ):
            with clients(fleet, tls, key) as stranger, pytest.raises(error, match=message):
                ask(stranger, "Hello", SAMPLING)
        rotated = threading.Event()
        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            running = [pool.submit(_ask_until, rotated, client, prompt) for prompt in PROMPTS]
            for _ in range(3):
                authority.issue("fleet")
                authority.issue("client")
            fleet.drafts[0].kill()
            fleet.drafts[0].restart(timeout_s=WAIT_S)  # its connections are made with the new certificates
            rotated.set()
            answers = [answer for future in running for answer in future.result()]
        again = [ask(client, prompt, SAMPLING) for prompt in PROMPTS]
        tokens = {answer.prompt_ids: answer.token_ids for answer in wanted}
        assert all(answer.token_ids == tokens[answer.prompt_ids] for answer in (*answers, *again))
        with clients(fleet, mine) as fresh:
            assert ask(fresh, PROMPTS[0], SAMPLING).token_ids == wanted[0].token_ids
            drafts = fresh.info().drafts
            assert [draft.ready for draft in drafts] == [True]
    fleet.stop()
    _check_traces(collector, num_requests=len(wanted) + len(answers) + len(again) + 1)
    _check_logs(tmp_path / "logs", [answer.request_id for answer in wanted])


def _ask_until(done: threading.Event, client: PacelineClient, prompt: str) -> list[Completion]:
    answers = [ask(client, prompt, SAMPLING)]
    while not done.is_set():
        answers.append(ask(client, prompt, SAMPLING))
    return answers


def _check_traces(collector: Collector, *, num_requests: int) -> None:
    """Every request is one trace: the router's span, an attempt under it, the target's and the draft's below."""
    by_id = {span.span: span for span in collector.spans}
    whole = [span for span in collector.spans if span.name == "Generate" and span.parent == ""]
    requests = [span for span in collector.spans if span.name == "target request"]
    sessions = [span for span in collector.spans if span.name == "draft session"]
    assert len({span.trace for span in whole}) == len(whole)
    assert Counter(span.service for span in collector.spans).keys() == {
        "paceline-router",
        "paceline-target",
        "paceline-draft",
    }
    assert len(requests) >= num_requests and len(sessions) >= len(PROMPTS)
    for span in requests:
        attempt = by_id[span.parent]
        assert (attempt.service, attempt.name) == ("paceline-router", "attempt")
        assert by_id[attempt.parent].name == "Generate"
    for span in sessions:
        assert by_id[span.parent].name == "target request" and span.trace == by_id[span.parent].trace


def _check_logs(folder: Path, request_ids: list[str]) -> None:
    """Every line is JSON, each request is named, and no line holds the key."""
    ended = []
    for path in folder.iterdir():
        text = path.read_text()
        assert KEY not in text
        for line in text.splitlines():
            if line.startswith("{"):
                document = json.loads(line)
                assert {"time", "level", "service", "logger", "message"} <= document.keys()
                if document["message"] == "request ended":
                    ended.append(document["request_id"])
                    assert document["tenant"] == "acme" and document["trace_id"]
    assert set(request_ids) <= set(ended)
